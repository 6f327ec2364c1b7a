"""The files of a new federation, with a comment for every line."""

FEDERATION = """\
# The coordinator's file of a federation. Whoever fits a model names it:
#   localpower fit --engine sites:federation.toml -k 5 --center -o model
# Certificates are valid until {until}. ca.key signs them: keep it secret, or on another machine.

host = "{host}"  # where the sites connect to; only this address is listened on
port = {port}
# listen = "0.0.0.0"  # listen on another address than the sites connect to, as behind a router
secure_sum = "strict"  # only masked sums leave a site; or "off"; or "recovery", which goes on where
# fewer than a third of the sites are lost: one of four to six, two of seven to nine, none of three
wait = 120  # seconds to wait for a site that is not connected
answer = 3600  # seconds that a site may take for one answer

# One entry for each site. Without its entry, a site is refused whatever certificate it has.
{sites}
"""

SITE = """\
[sites.{name}]
certificate = "{certificate}"  # of the key of its TLS certificate
identity = "{identity}"  # of the key that signs its part of a roster
"""

POLICY = """\
# What site {name} answers. Only this site edits it, and nobody else can.
# `localpower site check policy.toml` explains it; `localpower site join policy.toml` reads it once
# and takes part: after a change, end that and start it again.

name = "{name}"  # as in the certificate in the folder of keys
data = ""  # WRITE HERE the path of your rows, as "cohort.parquet" or "/data/cohort.csv"
# columns = ["age", "dose"]  # take only these columns
# drop = ["id"]  # or leave these out
# label = "outcome"  # a column that is set aside
# missing = "mean"  # rows with gaps: "drop" leaves them out, "mean" fills them in
coordinator = "{coordinator}"  # where this site connects to; it opens no port itself
keys = "keys"  # folder of this site's own keys: secret, never sent
# `localpower site key policy.toml` makes an identity key that nobody else has ever had

# All that is answered: means and variances, products with a basis, the Gram matrix, proposals; and
# both with noise, in private runs.
tasks = ["Sums", "Spread", "Prepare", "PowerSteps", "SmallGram", "GramTriangle", "Refine",
         "NoisedGram", "NoisedProduct"]
secure_sum = "required"  # answers are masked: only the sum over all sites can be read
# "optional" and "off" need "Describe" and "Triangle" among the tasks, too: no run without masks
# can do without them
min_rows = 100  # fewer rows here than this, or than ten times the columns asked for: no answer
min_sites = {least}  # fewer sites in a run: no answer. Less than all of them, as "recovery" needs,
# lets a coordinator ask with and without you: the difference is your part
max_rounds = 100  # answers in one run
max_columns = 1000  # columns answered in all runs on these data; the journal counts them
max_bytes = 268435456  # of the largest message, in or out
# privacy = {{epsilon = 1.0, delta = 1e-6, clip = 1.0}}  # only noised answers, until it is spent

[peers]  # the other sites, by the SHA-256 of their identity keys; a roster of others is refused
{peers}
"""
