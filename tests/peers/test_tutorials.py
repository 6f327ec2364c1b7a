"""Code as tutorials have it, with one import changed: it runs, and leaves the same behind."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

THEIRS, OURS = "from sklearn.decomposition import", "from localpower import"

# Each is a script, and the names of what it leaves behind that must be the same.
WHITENED = """
import matplotlib.pyplot as plt
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA

X, y = load_iris(return_X_y=True)
pca = PCA(n_components=2, whiten=True)
scores = pca.fit_transform(X)
figure, axes = plt.subplots()
points = axes.scatter(scores[:, 0], scores[:, 1], c=y)
axes.set(xlabel=f"PC1 ({pca.explained_variance_ratio_[0]:.0%})", title=str(pca.n_components_))
drawn, label = points.get_offsets().data, axes.get_xlabel()
plt.close(figure)
"""
CUMULATIVE = """
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

digits = load_digits()
pca = PCA().fit(digits.data)
cumulative = np.cumsum(pca.explained_variance_ratio_)
figure, axes = plt.subplots()
axes.plot(np.arange(1, pca.n_components_ + 1), cumulative, "+-")
axes.axvline(np.argmax(cumulative > 0.95) + 1)
needed = np.argmax(cumulative > 0.95) + 1
kept = PCA(n_components=0.95).fit(digits.data).n_components_
plt.close(figure)
"""
RECONSTRUCTION = """
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

X = load_digits().data
errors = []
for k in (1, 5, 20, 40):
    pca = PCA(n_components=k, svd_solver="full").fit(X)
    back = pca.inverse_transform(pca.transform(X))
    errors.append(np.mean((X - back) ** 2))
noisy = X + np.random.default_rng(0).normal(0, 4, X.shape)
denoised = PCA(0.5).fit(noisy)
clean = denoised.inverse_transform(denoised.transform(noisy))
"""
GRID = """
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

X, y = load_digits(return_X_y=True)
X, y = X[:400], y[:400]
pipe = Pipeline(
    steps=[("scaler", StandardScaler()), ("pca", PCA()), ("logistic", LogisticRegression(tol=0.1))]
)
grid = {"pca__n_components": [5, 15, 30], "pca__whiten": [True, False], "logistic__C": [0.1, 1.0]}
search = GridSearchCV(pipe, grid, cv=3, n_jobs=2).fit(X, y)
best, table = search.best_params_, search.cv_results_["mean_test_score"]
reduced = search.best_estimator_[:-1].transform(X)
first = search.best_estimator_.named_steps["pca"].components_[0]
"""
FRAMES = """
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

wine = load_wine(as_frame=True).data
reduce = make_pipeline(StandardScaler(), PCA(n_components=3)).set_output(transform="pandas")
scores = reduce.fit_transform(wine)
columns, index = list(scores.columns), scores.index.to_numpy()
loadings = pd.DataFrame(
    reduce[-1].components_.T, index=wine.columns, columns=reduce[-1].get_feature_names_out()
)
strongest = list(loadings.abs().idxmax())
some = ColumnTransformer([("dims", PCA(2), ["alcohol", "ash"])], remainder="drop")
names = list(some.fit(wine).get_feature_names_out())
values = scores.to_numpy()
"""
PICKLED = """
import pickle
from copy import deepcopy

import joblib
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA

X = load_breast_cancer().data
model = PCA(n_components=4, random_state=0).fit(X)
again = pickle.loads(pickle.dumps(model))
scores, deep = again.transform(X), deepcopy(model).transform(X)
joblib.dump(model, "model.joblib")
loaded = joblib.load("model.joblib").transform(X)
fresh = clone(model).set_params(n_components=2).fit(X).n_components_
shown = repr(clone(model))
"""
LIKELIHOOD = """
import numpy as np
from sklearn.datasets import make_low_rank_matrix
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score

rng = np.random.RandomState(42)
X = make_low_rank_matrix(300, 20, effective_rank=4, tail_strength=0.01, random_state=1)
X = X + 0.02 * rng.randn(*X.shape)
counts = np.arange(0, 20, 4)
scores = [np.mean(cross_val_score(PCA(svd_solver="full", n_components=k), X)) for k in counts]
chosen = counts[np.argmax(scores)]
guess = PCA(svd_solver="full", n_components="mle").fit(X).n_components_
covariance, noise = PCA(5).fit(X).get_covariance(), PCA(5).fit(X).noise_variance_
"""
TEXT = """
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

words = "rows columns shards rounds angle basis power ritz gap noise".split()
texts = [" ".join(words[(i * j + i) % 10] for j in range(7 + i % 5)) for i in range(60)]
X = TfidfVectorizer().fit_transform(texts)
svd = TruncatedSVD(n_components=3, algorithm="arpack", n_iter=7, random_state=42)
documents = make_pipeline(svd, Normalizer(copy=False)).fit_transform(X)
explained = svd.explained_variance_ratio_.sum()
values, axes = svd.singular_values_, svd.components_
"""
EIGENFACES = """
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

digits = load_digits()
h, w = digits.images.shape[1:]
train, test, y_train, y_test = train_test_split(digits.data, digits.target, random_state=42)
pca = PCA(n_components=15, svd_solver="randomized", whiten=True, random_state=0).fit(train)
faces = pca.components_.reshape((15, h, w)).shape
guessed = SVC(C=10, gamma=0.02).fit(pca.transform(train), y_train).predict(pca.transform(test))
right = np.mean(guessed == y_test)
"""
TUTORIALS = {
    "whitened scatter": (WHITENED, "scores drawn label"),
    "cumulative variance": (CUMULATIVE, "cumulative needed kept"),
    "reconstruction error": (RECONSTRUCTION, "errors clean"),
    "pipeline and grid search": (GRID, "best table reduced first"),
    "frames": (FRAMES, "columns index strongest names values"),
    "pickling": (PICKLED, "scores deep loaded fresh shown"),
    "likelihood": (LIKELIHOOD, "scores chosen guess covariance noise"),
    "text": (TEXT, "documents explained values axes"),
    "eigenfaces": (EIGENFACES, "faces right"),
}


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_with_one_import_changed_and_leaves_the_same(name, tmp_path, monkeypatch):
    code, left = TUTORIALS[name]
    monkeypatch.chdir(tmp_path)
    assert code.count(THEIRS) == 1
    spaces = []
    with mpl.rc_context({"backend": "agg"}):
        for text in (code, code.replace(THEIRS, OURS)):
            space = {"__name__": "tutorial"}
            exec(compile(text, name, "exec"), space)
            spaces.append(space)
    theirs, ours = spaces
    for word in left.split():
        expected = theirs[word]
        if np.asarray(expected).dtype.kind == "f":
            np.testing.assert_allclose(ours[word], expected, rtol=1e-6, atol=1e-7, err_msg=word)
        else:
            assert np.array_equal(ours[word], expected), word
