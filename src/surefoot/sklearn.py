"""A scikit-learn classifier with calibrated probabilities: `pip install 'surefoot[sklearn]'`."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.calibrators import CALIBRATORS, Calibration, cautious_fit
from surefoot.calibrators.advice import data_remarks
from surefoot.errors import InputError, one_of, require_whole
from surefoot.predictions.arrays import refuse_masked
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.outcomes import Array, Index
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.scikit import logits_of_rows
from surefoot.predictions.validate import check_class_names

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, check_cv
    from sklearn.utils import _safe_indexing, get_tags, indexable
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, _num_samples, check_is_fitted
except ImportError as error:
    raise InputError(
        f"surefoot.sklearn needs scikit-learn 1.6 or later, got: {error}; install it: "
        "pip install 'surefoot[sklearn]'"
    ) from error


class TemperatureScaledClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Any classifier, calibrated on predictions of rows that it was not trained on.

    `fit` trains a copy of `estimator` on each training part of `cv` and takes its logits of the other rows;
    on these out-of-fold logits the calibration is fitted. Then the estimator is trained on all rows. A
    `FrozenEstimator` is not trained again: all rows fit the calibration, so give rows that it was not trained
    on. The logits are `decision_function`, or the logarithms of `predict_proba`.

    Parameters
    ----------
    estimator : a classifier with `decision_function` or `predict_proba`; a `LogisticRegression` by default.
    method : temperature, softening, budget, vector, matrix, dirichlet, platt, beta, isotonic, histogram, or a
        registered one that needs no more than the logits.
    cv : the number of folds (fewer where a class has fewer rows), a splitter, or pairs of row indices.

    options : those of the method by name, such as {"bins": 20} for histogram.

    Attributes
    ----------
    classes_ : the classes in the order of the columns.
    estimator_ : the estimator, trained on all rows.
    calibration_ : the fitted calibration; `surefoot.save_calibration` writes it.
    n_features_in_, feature_names_in_ : those of `estimator_`, where it has them.

    >>> model = TemperatureScaledClassifier().fit([[0], [1], [2], [3]] * 10, [0, 0, 1, 1] * 8 + [0, 1] * 4)
    >>> model.predict_proba([[0.0], [3.0]]).round(2)
    array([[0.99, 0.01],
           [0.01, 0.99]])
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "temperature",
        cv: Any = 5,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.options = options

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, **fit_params: Any) -> Self:  # noqa: N803
        """Train the estimator and fit its calibration.

        `sample_weight` weighs the rows in both. `groups`, for a splitter that needs them, also keep the rows
        of a group together where a regularisation is chosen. Other parameters go to the estimator's `fit`;
        with metadata routing enabled, each goes where it is requested.
        """
        one_of("method", self.method, [each.name for each in CALIBRATORS if each.one_model])
        if isinstance(self.cv, int):
            require_whole("cv", self.cv, 2)
        if isinstance(self.estimator, type):
            raise InputError(f"estimator is the class {self.estimator.__name__}; allowed: an instance of it")
        if self.estimator is not None and not hasattr(self.estimator, "fit"):
            kind = type(self.estimator).__name__
            raise InputError(f"estimator has type {kind}; allowed: a scikit-learn classifier")
        for name, values in (("y", y), ("sample_weight", sample_weight)):
            refuse_masked(name, values)
        check_classification_targets(y)
        X, y = indexable(X, y)  # noqa: N806
        estimator = self._estimator()
        groups = fit_params.get("groups")
        if not _num_samples(X):
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required")
        weights = None
        if sample_weight is not None:
            weights = np.asarray(_check_sample_weight(sample_weight, X), dtype=np.float64)
        of_estimator, of_splitter = self._routed(estimator, weights, fit_params)
        if isinstance(estimator, FrozenEstimator):
            check_is_fitted(estimator)
            logits = _logits(estimator, X)
            self.estimator_, self.classes_ = estimator, np.asarray(estimator.classes_)
            labels = _labels(y, self.classes_)
        else:
            self.classes_ = np.unique(np.asarray(y))
            if len(self.classes_) < 2:
                raise ValueError(
                    f"Classifier can't train when only one class is present: {self.classes_[0]!r}"
                )
            labels = _labels(y, self.classes_)
            logits, known = self._out_of_fold(estimator, X, y, labels, of_estimator, of_splitter)
            labels = np.where(known, labels, IGNORE)
            self.estimator_ = clone(estimator).fit(X, y, **of_estimator)
        self.calibration_ = _fitted(self.method, self.options, logits, labels, weights, groups, self.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Calibrated probabilities, (n, classes)."""
        probabilities: Array = self._calibrated(X).probs()
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Calibrated logits (n, classes); of two classes the log odds of the second, (n,)."""
        logits: Array = self._calibrated(X).logits[0].astype(np.float64)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def get_metadata_routing(self) -> Any:
        """What `fit` passes on: to the estimator's `fit`, and to the splitter's `split`."""
        to_fit, to_split = (MethodMapping().add(caller="fit", callee=callee) for callee in ("fit", "split"))
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        router.add(estimator=self._estimator(), method_mapping=to_fit)
        return router.add(splitter=check_cv(self.cv, classifier=True), method_mapping=to_split)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self._estimator()).input_tags.sparse
        return tags

    def _estimator(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        default = LogisticRegression()
        return default.set_fit_request(sample_weight=True) if _routing_enabled() else default

    def _routed(
        self, estimator: Any, sample_weight: Any, fit_params: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parameters of the estimator's `fit`, and of the splitter's `split`."""
        if _routing_enabled():
            routed = process_routing(self, "fit", sample_weight=sample_weight, **fit_params)
            return dict(routed.estimator.fit), dict(routed.splitter.split)
        of_estimator = {name: value for name, value in fit_params.items() if name != "groups"}
        if sample_weight is not None:
            if "sample_weight" in inspect.signature(estimator.fit).parameters:
                of_estimator["sample_weight"] = sample_weight
            else:
                warnings.warn(
                    f"{type(estimator).__name__} takes no sample_weight: only the calibration is weighted",
                    stacklevel=3,
                )
        return of_estimator, {"groups": fit_params["groups"]} if "groups" in fit_params else {}

    def _out_of_fold(
        self,
        estimator: Any,
        X: Any,  # noqa: N803
        y: Any,
        labels: Index,
        of_estimator: Mapping[str, Any],
        of_splitter: Mapping[str, Any],
    ) -> tuple[Array, NDArray[np.bool_]]:
        """The logits of every row from a model that was not trained on it, and whether it knew the class.

        A class that a model was not trained on has the probability 1 / n there, and its rows are left out.
        """
        rows, folds = _num_samples(X), self.cv
        if isinstance(folds, int):
            folds = max(2, min(folds, int(np.bincount(labels).min())))
        # What `check_cv` returns for classes that are checked already.
        is_counted = isinstance(folds, int) and np.ndim(y) == 1
        splitter = StratifiedKFold(folds) if is_counted else check_cv(folds, y, classifier=True)
        logits = np.zeros((rows, len(self.classes_)))
        known, seen = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The least populated class")  # its rows are left out
            splits = list(splitter.split(X, y, **of_splitter))
        for train, test in splits:
            indexed = {
                name: _taken(value, train) if _is_of_rows(value, rows) else value
                for name, value in of_estimator.items()
            }
            model = clone(estimator).fit(_taken(X, train), _taken(y, train), **indexed)
            if not hasattr(model, "classes_"):
                raise InputError(f"estimator is a {type(model).__name__}; allowed: a scikit-learn classifier")
            columns = _labels(model.classes_, self.classes_)
            found = _logits(model, _taken(X, test))
            known[test] = True
            if len(columns) < len(self.classes_):
                level = np.logaddexp.reduce(found, axis=1, keepdims=True) - np.log(rows)
                filled = np.broadcast_to(level, (len(found), len(self.classes_))).copy()
                filled[:, columns] = found
                found = filled
                known[test] = np.isin(labels[test], columns)
            logits[test], seen[test] = found, True
        if not seen.any() or not known.any():
            raise InputError("cv leaves no row out whose class was trained on; needed: at least one such row")
        return logits, known & seen

    def _calibrated(self, X: Any) -> Predictions:  # noqa: N803
        check_is_fitted(self)
        logits = _logits(self.estimator_, X)
        calibration: Calibration = self.calibration_
        names = calibration.class_names
        return calibration(Predictions.from_logits(logits, None, kind=LabelKind.ONE_LABEL, class_names=names))


def _routing_enabled() -> bool:
    from sklearn import get_config

    return bool(get_config().get("enable_metadata_routing"))


def _taken(value: Any, rows: Any) -> Any:
    """Some rows of an array, a list or a table."""
    if type(value) is np.ndarray and isinstance(rows, np.ndarray) and rows.dtype.kind == "i":
        return value.take(rows, axis=0)
    return _safe_indexing(value, rows)


def _is_of_rows(value: Any, rows: int) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | dict) and len(value) == rows


def _labels(y: Any, classes: NDArray[Any]) -> Index:
    """The index of each label among the sorted classes."""
    given = np.asarray(y).reshape(-1)
    places = np.minimum(np.searchsorted(classes, given), len(classes) - 1)
    if not (classes[places] == given).all():
        unknown, have = given[classes[places] != given].tolist()[0], ", ".join(map(str, classes))
        raise InputError(f"label {unknown!r} is not a class of the estimator; have: {have}")
    return places.astype(np.int64)


def _logits(model: Any, X: Any) -> Array:  # noqa: N803
    """(n, classes); of a model that knows one class only, (n, 1)."""
    if not (hasattr(model, "decision_function") or hasattr(model, "predict_proba")):
        name = type(model).__name__
        raise InputError(f"{name} has neither decision_function nor predict_proba; needed: one of them")
    logits = logits_of_rows(model, X, LabelKind.ONE_LABEL)
    if logits.ndim == 1:
        logits = np.stack([np.zeros_like(logits), logits], axis=1)
    return logits


def _fitted(
    method: str,
    options: Mapping[str, Any] | None,
    logits: Array,
    labels: Index,
    weights: Array | None,
    groups: ArrayLike | None,
    classes: NDArray[Any],
) -> Calibration:
    """The calibration, and warnings; groups must be text or whole numbers to be used."""
    keys = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    val = Predictions.from_logits(logits, labels, groups=keys, class_names=_names_of(classes))
    given = dict(options or {}) | ({} if weights is None else {"weights": weights})
    fitted = cautious_fit(CALIBRATORS.named(method), val, **given)
    declined = getattr(fitted, "declined", None)
    if getattr(fitted, "ece_declined", None) is not None:
        _warn(". ".join(fitted.notes()))
    elif declined is not None and method == "temperature":
        _warn(f"the fitted T = {declined:.3g} is uncertain (n = {fitted.n}): probabilities are not changed")
    for remark in data_remarks(val):
        _warn(remark)
    return fitted


def _names_of(classes: NDArray[Any]) -> list[str] | None:
    """The classes as text; None where a file of predictions could not hold such names."""
    names = [str(each) for each in classes.tolist()]
    try:
        check_class_names(names)
    except InputError:
        return None
    return names


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)  # where `fit` was called
