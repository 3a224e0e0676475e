"""Devices as they come: when they check in, whom their timers let take part, and what that allows to plan."""

from fedmf.cohorts.check_in.check_ins import CheckIns
from fedmf.cohorts.check_in.forecasting import Forecast, forecast
from fedmf.cohorts.check_in.schedule import CheckInSchedule, DeviceRule, Participations
from fedmf.cohorts.check_in.trace import DiurnalModel, read_check_ins

__all__ = [
    "CheckInSchedule",
    "CheckIns",
    "DeviceRule",
    "DiurnalModel",
    "Forecast",
    "Participations",
    "forecast",
    "read_check_ins",
]
