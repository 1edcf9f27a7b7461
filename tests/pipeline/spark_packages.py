"""Properties with which Spark resolves packages in tests, and the end of a delivery."""

from quiver.clock import SYSTEM_CLOCK
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.listing import summarize_subscribers
from quiver.store.reading.log_tail import sealed_and_logged

IVY = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
"""Spark's default also searches the local repository of Maven, which may have the description of a jar without it."""


def from_maven_central(directory):
    """Return the lines of `spark.config` for packages of Maven Central alone, with their jars below *directory*."""
    (directory / "ivysettings.xml").write_text(IVY)
    return f"    spark.jars.ivy: {directory}/ivy\n    spark.jars.ivySettings: {directory}/ivysettings.xml\n"


def is_delivered(directory):
    """Return whether all bundles of the store are sealed, and resolved by its only subscriber."""
    subscribers = summarize_subscribers(REAL_FILES, str(directory), now_ns=SYSTEM_CLOCK.now_ns())
    _, logged = sealed_and_logged(REAL_FILES, str(directory))
    return not logged and [one.lag_bundles for one in subscribers] == [0]
