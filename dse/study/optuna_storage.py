"""A finished run as a study in a storage of Optuna's, which its dashboard and importances read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hw.space import Axis

if TYPE_CHECKING:
    import optuna

# (values of the axes by key; objectives, None: not solved; violations that are > 0 if not met)
Row = tuple[Mapping[str, Any], Sequence[float] | None, Mapping[str, float]]


def write(
    target: str, name: str, axes: Sequence[Axis], objectives: Mapping[str, str], rows: Sequence[Row]
) -> None:
    """Writes a study with a trial per row. target: URL of a database (sqlite:///run.db), or a journal file.

    objectives: name -> "min" or "max"
    Raises ValueError if the storage cannot be written, or has a study of that name.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        storage: Any = (
            target if "://" in target else optuna.storages.JournalStorage(JournalFileBackend(target))
        )
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            directions=["maximize" if d == "max" else "minimize" for d in objectives.values()],
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise ValueError(f"{target}: has a study {name} already; give another storage") from None
    except Exception as fault:  # of the operating system, SQLAlchemy, or a driver that is not installed
        reason = " ".join(str(fault).partition("[SQL:")[0].split())[:200]
        raise ValueError(f"{target}: {reason}; give another FILE or sqlite:///FILE") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(objectives))
    distributions = {axis.key: _distribution(axis) for axis in axes}
    study.add_trials([_trial(row, distributions) for row in rows])


def _trial(row: Row, distributions: Mapping[str, Any]) -> optuna.trial.FrozenTrial:
    import optuna

    parameters, values, violations = row
    state = optuna.trial.TrialState.FAIL if values is None else optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(
        state=state,
        values=values,
        params={key: parameters[key] for key in distributions},
        distributions=dict(distributions),
        constraints=dict(violations),
    )


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    """Returns the distribution that holds all values of an axis."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: list[Any] = list(axis.values)
    if all(type(value) is int for value in found):
        return IntDistribution(min(found), max(found))
    if all(type(value) in (int, float) for value in found):
        return FloatDistribution(float(min(found)), float(max(found)))
    return CategoricalDistribution(found)
