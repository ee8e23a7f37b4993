"""Calibrators: each is fitted on the first half of the rows; the job returns the NLL of the other half."""

import numpy as np
from scipy.special import softmax


def _halves(data):
    logits = data.values.astype(np.float64)
    half = len(logits) // 2
    return logits[:half], data.labels[:half], logits[half:], data.labels[half:]


def _nll(probs, labels):
    return float(-np.log(np.clip(probs[np.arange(len(labels)), labels], 1e-12, 1)).mean())


def _surefoot(name, **options):
    def contestant(data):
        from surefoot import Predictions
        from surefoot.calibrators import CALIBRATORS

        logits, labels, others, truth = _halves(data)
        val, test = Predictions.from_logits(logits, labels), Predictions.from_logits(others, truth)
        fit = CALIBRATORS.named(name).fit
        return lambda: _nll(fit(val, **options)(test).probs(), truth)

    return contestant


surefoot_vector = _surefoot("vector", regularisation=0.0)
surefoot_matrix = _surefoot("matrix", regularisation=0.0)
surefoot_dirichlet = _surefoot("dirichlet", regularisation=0.0)
surefoot_vector_cv = _surefoot("vector")
surefoot_matrix_cv = _surefoot("matrix")
surefoot_platt = _surefoot("platt")
surefoot_beta = _surefoot("beta")
surefoot_isotonic = _surefoot("isotonic")
surefoot_histogram = _surefoot("histogram")


def _probmetrics(build):
    def contestant(data):
        import torch
        from probmetrics import calibrators
        from probmetrics.distributions import CategoricalLogits

        logits, labels, others, truth = (torch.from_numpy(each) for each in _halves(data))

        def job():
            calibrator = build(calibrators)
            calibrator.fit_torch(CategoricalLogits(logits), labels)
            probs = calibrator.predict_proba_torch(CategoricalLogits(others)).get_probs()
            return _nll(probs.detach().numpy(), truth.numpy())

        return job

    return contestant


probmetrics_vector = _probmetrics(lambda module: module.VectorScalingCalibrator())
probmetrics_matrix = _probmetrics(lambda module: module.MatrixScalingCalibrator())
probmetrics_svs = _probmetrics(lambda module: module.SVSCalibrator())
probmetrics_sms = _probmetrics(lambda module: module.SMSCalibrator())


def sklearn_matrix_cv(data):
    """As many strengths of L2 regularisation and folds as ours, chosen by the same score."""
    from sklearn.linear_model import LogisticRegressionCV

    logits, labels, others, truth = _halves(data)

    def job():
        model = LogisticRegressionCV(Cs=11, cv=5, scoring="neg_log_loss", max_iter=1000)
        return _nll(model.fit(logits, labels).predict_proba(others), truth)

    return job


def _one_vs_rest(fit):
    """A peer for two classes, on each class against the others, divided by the sum."""

    def contestant(data):
        logits, labels, others, truth = _halves(data)
        columns = [1] if logits.shape[1] == 2 else range(logits.shape[1])

        def job():
            probs, new = softmax(logits, axis=1), softmax(others, axis=1)
            each = np.stack([fit(probs[:, k], labels == k, new[:, k]) for k in columns], axis=1)
            if each.shape[1] == 1:
                each = np.concatenate([1 - each, each], axis=1)
            return _nll(each / np.maximum(each.sum(axis=1, keepdims=True), 1e-300), truth)

        return job

    return contestant


def _log_odds(p):
    p = np.clip(p, 1e-15, 1 - 1e-15)
    return np.log(p) - np.log1p(-p)


def _sklearn_platt(p, y, new):
    from sklearn.calibration import _SigmoidCalibration

    return _SigmoidCalibration().fit(_log_odds(p), y).predict(_log_odds(new))


def _sklearn_isotonic(p, y, new):
    from sklearn.isotonic import IsotonicRegression

    return IsotonicRegression(out_of_bounds="clip").fit(p, y).predict(new)


def _netcal(name, module):
    def fit(p, y, new):
        import importlib

        calibrator = getattr(importlib.import_module(f"netcal.{module}"), name)()
        calibrator.fit(p, y.astype(np.int64))
        return np.asarray(calibrator.transform(new)).reshape(-1)

    return fit


sklearn_platt = _one_vs_rest(_sklearn_platt)
sklearn_isotonic = _one_vs_rest(_sklearn_isotonic)
netcal_platt = _one_vs_rest(_netcal("LogisticCalibration", "scaling"))
netcal_beta = _one_vs_rest(_netcal("BetaCalibration", "scaling"))
netcal_isotonic = _one_vs_rest(_netcal("IsotonicRegression", "binning"))
netcal_histogram = _one_vs_rest(_netcal("HistogramBinning", "binning"))


def _softmax(logits, out):
    """(classes, n) to probabilities, with nothing that could be left out."""
    np.subtract(logits, logits.max(axis=0), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=0)
    return out


def numpy_histogram_least(data):
    """The scores of both halves, and the other half's places in bins that are known already; no fit.

    The scores of two classes are the differences of their logits, of more classes the softmax.
    """
    logits, _labels, others, truth = _halves(data)
    is_binary = logits.shape[1] == 2
    edges, shares = np.arange(1, 10) / 10, np.arange(10) / 10 + 0.05

    def scores(given):
        if is_binary:
            return (given[:, 1] - given[:, 0])[None]
        return _softmax(given.T, np.empty(given.shape[::-1]))

    def job():
        scores(logits)
        each = scores(others)
        for row in each:
            place = np.zeros(len(row), dtype=np.uint8)
            for edge in edges:
                place += row >= edge
            row[:] = shares.take(place)
        if is_binary:
            each = np.concatenate([1 - each, each])
        else:
            each /= each.sum(axis=0)
        return _nll(each.T, truth)

    return job


def _fits_least(is_diagonal):
    """Of 11 strengths and five folds, each: one gradient of the rows to fit, one NLL of those left out."""

    def contestant(data):
        logits, labels, others, truth = _halves(data)
        features, fold = np.ascontiguousarray(logits.T), np.arange(len(labels)) % 5
        parts = [
            (features[:, fold != k].copy(), features[:, fold == k].copy(), labels[fold == k])
            for k in range(5)
        ]
        weights = np.eye(len(features))

        def scores(rows, out):
            if is_diagonal:
                return np.multiply(rows, weights.diagonal()[:, None], out=out)
            return np.matmul(weights, rows, out=out)

        def job():
            for train, test, known in parts:
                space, small = np.empty_like(train), np.empty_like(test)
                for _ in range(11):
                    probs = _softmax(scores(train, space), space)
                    _ = np.vecdot(probs, train) if is_diagonal else probs @ train.T
                    _nll(_softmax(scores(test, small), small).T, known)
            return _nll(_softmax(others.T, np.empty(others.shape[::-1])).T, truth)

        return job

    return contestant


numpy_vector_cv_least = _fits_least(True)
numpy_matrix_cv_least = _fits_least(False)


def _estimator(build):
    """A whole classifier, naive Bayes with the logits as features, cross-fitted."""

    def contestant(data):
        values, labels, others, truth = _halves(data)
        return lambda: _nll(build().fit(values, labels).predict_proba(others), truth)

    return contestant


def _ours(method):
    def build():
        from sklearn.naive_bayes import GaussianNB

        from surefoot.sklearn import TemperatureScaledClassifier

        return TemperatureScaledClassifier(GaussianNB(), method=method)

    return _estimator(build)


def _theirs(method, ensemble):
    def build():
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.naive_bayes import GaussianNB

        return CalibratedClassifierCV(GaussianNB(), method=method, ensemble=ensemble, cv=5)

    return _estimator(build)


surefoot_estimator_temperature = _ours("temperature")
surefoot_estimator_platt = _ours("platt")
surefoot_estimator_isotonic = _ours("isotonic")
sklearn_estimator_temperature = _theirs("temperature", False)
sklearn_estimator_sigmoid = _theirs("sigmoid", False)
sklearn_estimator_isotonic = _theirs("isotonic", False)


def numpy_estimator_alone(data):
    """What both must do: five models and one of all rows, with their predictions; no calibration."""
    from sklearn.model_selection import StratifiedKFold
    from sklearn.naive_bayes import GaussianNB

    values, labels, others, truth = _halves(data)

    def job():
        for train, test in StratifiedKFold(5).split(values, labels):
            GaussianNB().fit(values[train], labels[train]).predict_proba(values[test])
        return _nll(GaussianNB().fit(values, labels).predict_proba(others), truth)

    return job
