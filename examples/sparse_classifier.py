"""A scikit-learn classifier that gives implausible classes probability zero.

    pip install scikit-learn
    python examples/sparse_classifier.py

The script compares it with logistic regression on scikit-learn's digits. It prints the accuracy, the mean number of
possible classes, and how often the correct class is one of them. `EntmaxClassifier` passes scikit-learn's estimator
checks, so it works in pipelines and hyperparameter searches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

import tsallis


class EntmaxClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier that minimises the entmax loss, which is convex in its weights, and predicts with entmax.

    Args:
        alpha: Sparsity of the probabilities. 1 is logistic regression; larger values give more zeros.
        l2: Weight of the L2 penalty, which is half the sum of squared weights.
        max_iter: Maximum number of iterations of L-BFGS.
    """

    def __init__(self, alpha: float = 1.5, l2: float = 1e-3, max_iter: int = 200) -> None:
        self.alpha, self.l2, self.max_iter = alpha, l2, max_iter

    def fit(self, X: Any, y: Any) -> EntmaxClassifier:
        """Learn weights [classes, features] from rows and their classes."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        rows, target = torch.tensor(X), torch.from_numpy(numbers)
        weight = torch.zeros(len(self.classes_), X.shape[1], dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(len(self.classes_), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=self.max_iter, line_search_fn="strong_wolfe")

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = tsallis.entmax_loss(rows @ weight.T + bias, target, self.alpha)
            loss = loss + self.l2 / 2 * weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(step)
        self.n_iter_ = max(optimizer.state[weight]["n_iter"], 1)
        self.coef_, self.intercept_ = weight.detach().numpy(), bias.detach().numpy()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return probabilities [rows, classes]; some of them are exactly zero."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return tsallis.entmax(torch.from_numpy(X @ self.coef_.T + self.intercept_), self.alpha).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def main() -> None:
    X, y = load_digits(return_X_y=True)
    train, test, labels, gold = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    candidates = {
        "logistic regression": LogisticRegression(max_iter=1000),
        "entmax, alpha 1.5": EntmaxClassifier(alpha=1.5),
        "entmax, alpha 2": EntmaxClassifier(alpha=2.0),
    }
    for name, classifier in candidates.items():
        probs = make_pipeline(StandardScaler(), classifier).fit(train, labels).predict_proba(test)
        support = probs > 0
        print(
            f"{name}: {(probs.argmax(1) == gold).mean():.1%} right, {support.sum(1).mean():.2f} of 10 classes left, "
            f"the right one among them {support[np.arange(len(gold)), gold].mean():.1%}"
        )


if __name__ == "__main__":
    main()
