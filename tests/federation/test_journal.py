"""The journal of a site: chained, counted again at start, and held by one agent."""

import json
import subprocess
import sys

import pytest

from localpower.core.errors import DataError, EngineError
from localpower.federation import journal as journals
from localpower.federation.join import SpokenJournal
from localpower.federation.journal import Entry, Journal, verified

RUN = "ab" * 16


def some(path):
    journal = Journal(path)
    journal.write(Entry("opened", RUN, text="a run"))
    journal.write(Entry("answered", RUN, 1, "Sums", "q1", "a1", 64, 1, True))
    journal.write(Entry("answered", RUN, 2, "PowerSteps", "q2", "a2", 24, 5, False, 0.5, 0.25))
    journal.write(Entry("refused", RUN, 3, "TopVectors", text="no"))
    journal.write(Entry("failed", RUN, 3, "PowerSteps", "q3", "a3", columns=2, masked=True))
    return journal


def test_what_was_spent_is_counted_again_when_it_is_opened(tmp_path):
    some(tmp_path / "j").close()
    for _ in range(2):
        journal = Journal(tmp_path / "j")
        assert (journal.columns, journal.plain_columns, journal.epsilon) == (8, 5, 0.25)
        assert (journal.rounds(RUN), journal.asked(RUN)) == (3, 3)
        assert journal.seen(RUN, 2).question == "q2"
        assert journal.seen(RUN, 4) is None
        assert journal.knows(RUN)
        assert not journal.is_over(RUN)
        assert journal.verify() == 5
        journal.close()


def test_a_run_that_is_closed_is_over_and_its_columns_stay_spent(tmp_path):
    journal = some(tmp_path / "j")
    journal.write(Entry("closed", RUN))
    assert journal.is_over(RUN)
    assert journal.seen(RUN, 1) is None
    journal.close()
    journal = Journal(tmp_path / "j")
    assert journal.is_over(RUN)
    assert journal.knows(RUN)
    assert journal.columns == 8
    journal.close()


def changed(lines, how):
    at, change = how
    lines[at] = change(lines[at])
    return lines


TAMPERED = {
    "a number": lambda lines: changed(
        lines, (2, lambda t: t.replace('"columns":5', '"columns":1'))
    ),
    "a line left out": lambda lines: lines[:1] + lines[2:],
    "lines exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
    "a line twice": lambda lines: [lines[0], *lines],
    "a line more": lambda lines: [*lines, json.dumps({"kind": "opened", "chain": "0" * 64})],
    "no JSON": lambda lines: [*lines, "{"],
    "no object": lambda lines: [*lines, "[1]"],
    "written in another way": lambda lines: changed(lines, (0, lambda t: t.replace(":", ": ", 1))),
    "the first left out": lambda lines: lines[1:],
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_a_line_that_was_changed_is_found(tmp_path, kind):
    path = tmp_path / "j"
    some(path).close()
    text = TAMPERED[kind](path.read_text().splitlines())
    path.write_text("\n".join(text) + "\n")
    with pytest.raises(DataError, match=r"j, line \d: the journal was changed .* restore it"):
        Journal(path)


def test_a_last_line_that_was_never_finished_is_removed(tmp_path):
    path = tmp_path / "j"
    some(path).close()
    whole = path.read_bytes()
    for cut in (1, 30, 100):
        path.write_bytes(whole + whole[:cut])
        assert len([*verified(path)]) == 5  # whoever only looks need not mend it
        journal = Journal(path)
        assert journal.verify() == 5
        journal.write(Entry("closed", RUN))
        assert journal.verify() == 6
        journal.close()


def test_a_second_agent_is_kept_out_until_the_first_has_ended(tmp_path):
    path = tmp_path / "j"
    first = Journal(path)
    with pytest.raises(EngineError, match="in use by another agent of this site: end that one"):
        Journal(path)
    code = f"from localpower.federation.journal import Journal; Journal({str(path)!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "in use by another agent" in other.stderr
    first.close()
    Journal(path).close()


def test_refusals_without_end_do_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "MOST_REFUSED", 5)
    journal = Journal(tmp_path / "j")
    for number in range(20):
        journal.write(Entry("refused", text=f"no {number}"))
    assert journal.verify() == 5
    *_, (last, _) = verified(journal.path)
    assert "not listed" in last.text
    journal.write(Entry("opened", RUN))
    journal.write(Entry("refused", text="again"))
    assert journal.verify() == 7
    journal.close()


def test_lines_have_a_time_and_only_what_there_is(tmp_path):
    some(tmp_path / "j").close()
    told = json.loads((tmp_path / "j").read_text().splitlines()[0])
    assert {*told} == {"kind", "run", "text", "time", "chain"}
    assert told["time"].endswith("+00:00")


def test_a_journal_that_was_closed_takes_no_more(tmp_path):
    first = Journal(tmp_path / "j")
    first.close()
    second = Journal(tmp_path / "j")  # may have the number of the file that was closed
    with pytest.raises(OSError, match="Bad file"):
        first.write(Entry("opened", RUN))
    assert second.verify() == 0
    second.close()


def test_texts_of_a_coordinator_cannot_steer_the_terminal(tmp_path):
    said = []
    journal = SpokenJournal(tmp_path / "journal.jsonl", said.append)
    evil = "a\x1b[2J\rrun closed\n\ud800é"
    journal.write(Entry("opened", RUN, text=evil))
    journal.write(Entry("refused", "\x1b[1A", text=evil))
    journal.close()
    assert all(each.isprintable() and each.encode() for each in said)
    assert said[0].endswith(r"opened: a\x1b[2J\rrun closed\n\ud800é")
