"""Supply voltage: how energy, leakage and delay of a chip follow it, and the highest clock. hw/component.py
reads the devices from hw/data/voltage.csv and applies this to what it takes from its tables.

    energy of an action ~ vdd^2
    delay               ~ vdd / (vdd - vth)^alpha        (the alpha-power law)
    leakage power       ~ vdd * vdd^leak_exponent

Sources: Sakurai and Newton, JSSC 25 (1990) for the law; its parameters as McPAT 1.3 has them for the devices
of CACTI. A clock cycle is FO4_PER_CYCLE delays of an inverter that drives four: Chinnery and Keutzer, DAC
2000, of a synthesized processor at its specified clock (Xtensa; custom ones have 13 to 15).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import ceil, floor

LEAST = 0.0  # of Machine.vdd: `least`, the lowest voltage at which the clock is met
FO4_PER_CYCLE = 44
# Voltages as shares of the nominal one: below, McPAT 1.3 computes no SRAM; above, nothing was compared.
LOWEST, HIGHEST = 0.75, 1.2
STEPS_PER_V = 100  # `least` takes steps of 10 mV


def energy_factor(vdd: float, table_v: float) -> float:
    """Returns the energy of an action at vdd over that at the voltage of its table."""
    return (vdd / table_v) ** 2


@dataclass(frozen=True, slots=True)
class Device:
    """Transistors of a technology node and cell."""

    nominal_v: float
    vth_v: float
    alpha: float
    leak_exponent: float  # leakage current grows with this power of the voltage
    fo4_ps: float  # at nominal voltage

    def leak_factor(self, vdd: float) -> float:
        """Returns the leakage power at vdd over that at nominal voltage."""
        return math.pow(vdd / self.nominal_v, 1 + self.leak_exponent)

    def delay_factor(self, vdd: float) -> float:
        """Returns the delay of a circuit at vdd over that at nominal voltage.
        >>> Device(1.0, 0.2, 1.0, 4, 10.0).delay_factor(0.6)
        1.2
        """
        overdrive = (self.nominal_v - self.vth_v) / (vdd - self.vth_v)
        return math.pow(overdrive, self.alpha) * (vdd / self.nominal_v)

    def highest_mhz(self, vdd: float) -> float:
        """Returns the highest clock of logic at vdd."""
        return 1e6 / (FO4_PER_CYCLE * self.fo4_ps * self.delay_factor(vdd))

    def range_v(self) -> tuple[float, float]:
        """Returns the lowest and the highest voltage that the model is for."""
        return LOWEST * self.nominal_v, HIGHEST * self.nominal_v

    def least_v(self, delay_factor: float) -> float | None:
        """Returns the least voltage, in steps of 10 mV, at which delays are at most so many times those at
        nominal voltage; None where none of the range is enough.
        >>> Device(1.0, 0.2, 1.0, 4, 10.0).least_v(1.2), Device(1.0, 0.2, 1.0, 4, 10.0).least_v(0.9)
        (0.75, None)
        """
        low, high = (share * self.nominal_v * STEPS_PER_V for share in (LOWEST, HIGHEST))
        steps = (step / STEPS_PER_V for step in range(ceil(low - 1e-9), floor(high + 1e-9) + 1))
        return next((vdd for vdd in steps if self.delay_factor(vdd) <= delay_factor), None)
