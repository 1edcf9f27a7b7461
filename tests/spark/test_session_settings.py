"""The settings of a session, their properties, and property files, without Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quiver.errors import SettingsError, UsageError
from quiver.spark.session_properties import read_spark_defaults, session_properties, starting_with, working_python
from quiver.spark.session_settings import SessionSettings, is_local, parse_properties, write_properties

TEMP = Path("/tmp/quiver-spark-1")


def made(given=None, before=None, *, temp_dir=TEMP, quick_start=True):
    return session_properties("app", given or {}, before or {}, temp_dir, quick_start=quick_start)


def test_each_setting_becomes_its_property():
    """Lists are joined; what is not given is left to Spark."""
    settings = SessionSettings(
        master="spark://host:7077",
        config={"spark.executor.memory": "2g"},
        packages=("org.a:b_2.13:1.0", "c:d:2"),
        jars=("a.jar", "https://host/b.jar"),
        files=("log4j2.properties",),
        archives=("env.tar.gz#env",),
    )
    assert settings.properties() == {
        "spark.executor.memory": "2g",
        "spark.jars.packages": "org.a:b_2.13:1.0,c:d:2",
        "spark.jars": "a.jar,https://host/b.jar",
        "spark.files": "log4j2.properties",
        "spark.archives": "env.tar.gz#env",
        "spark.master": "spark://host:7077",
    }
    assert SessionSettings().properties() == {}


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[4,2]", "local-cluster[2,1,1024]", "yarn", "spark://a:1,b:2"]
)
def test_masters_that_spark_submit_accepts(master):
    assert SessionSettings(master=master).master == master


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"master": "host:7077"}, "master: write local"),
        ({"master": "sc://host"}, "sc:// has no driver here"),
        ({"config": {"spark.master": "yarn"}}, "write master next to config"),
        ({"config": {"spark.jars.packages": "a:b:c"}}, "write packages next to config"),
        ({"config": {"spark.submit.deployMode": "cluster"}}, "deployMode cannot be changed"),
        ({"config": {"spark.scheduler.mode": "FIFO"}}, "dispatch_strategy"),
        ({"config": {"executor.memory": "1g"}}, "'executor.memory' has no effect"),
        ({"packages": ("org.a:b",)}, "'org.a:b' is not group:artifact:version"),
        ({"jars": ("a.jar,b.jar",)}, "'a.jar,b.jar' is not one path"),
        ({"files": ("",)}, "files: '' is not one path"),
    ],
)
def test_invalid_settings_are_refused(values, message):
    """The message names the key."""
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        SessionSettings(**values)


def test_values_of_properties_are_not_shown():
    """A value may be a password."""
    assert "hunter2" not in repr(SessionSettings(config={"spark.hadoop.secret": "hunter2"}))


def test_missing_local_files_are_reported(tmp_path):
    """Spark would start without them; a URL is left to Spark."""
    jar = tmp_path / "a b.jar"
    for place in (str(jar), f"{tmp_path.as_uri()}/a%20b.jar", f"{jar}#name"):
        settings = SessionSettings(archives=(place, "https://host/c.zip", "local:///opt/d.zip"))
        with pytest.raises(UsageError, match=r"spark\.archives: there is no file .*a b\.jar"):
            settings.check_files()
    jar.touch()
    settings.check_files()


def test_settings_of_the_caller_precede_those_of_spark_which_precede_the_defaults():
    before = {"spark.master": "local[3]", "spark.ui.enabled": "true", "spark.sql.session.timeZone": "CET"}
    found = made({"spark.master": "local[4]"}, before)
    assert found["spark.master"] == "local[4]"
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.log.level"] == "ERROR"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert made({}, before)["spark.master"] == "local[3]"
    assert made()["spark.master"] == "local[2]"
    assert made({"spark.sql.session.timeZone": "CET"})["spark.sql.session.timeZone"] == "CET"


def test_executors_on_other_hosts_can_reach_the_driver():
    """Only a local master binds the driver to this host, and uses Unix sockets."""
    local, cluster = made(), made({"spark.master": "spark://host:7077"})
    for key in ("spark.driver.host", "spark.driver.bindAddress", "spark.python.unix.domain.socket.dir"):
        assert key in local
        assert key not in cluster
    assert local["spark.python.unix.domain.socket.dir"] == str(TEMP)
    assert "spark.python.unix.domain.socket.dir" not in made(temp_dir=Path("/" + 55 * "d"))
    assert [is_local(one) for one in ("local", "local[2]", "local-cluster[2,1,1024]", "yarn")] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("own", "quick_start", "options"),
    [
        (None, True, "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
        (None, False, "-Xss16m"),
        ("-XX:+UseG1GC", True, "-Xss16m -XX:+UseG1GC"),
        ("-XX:+UseG1GC -Xss16m", True, "-XX:+UseG1GC -Xss16m"),
    ],
)
def test_options_of_the_jvm_are_added_to_those_that_queries_need(own, quick_start, options):
    """Two garbage collectors would prevent the start."""
    given = {} if own is None else {"spark.driver.extraJavaOptions": own}
    assert made(given, quick_start=quick_start)["spark.driver.extraJavaOptions"] == options


DEFAULTS = r"""
# comment
! comment
spark.master            spark://host:7077
spark.a=1
  spark.b : 2 = 3
spark.long  one \
            two
spark.escaped\ key=tab\tü \u0041
spark.empty
spark.end  last\
"""


def test_properties_are_read_as_java_reads_them():
    assert parse_properties(DEFAULTS) == {
        "spark.master": "spark://host:7077",
        "spark.a": "1",
        "spark.b": "2 = 3",
        "spark.long": "one two",
        "spark.escaped key": "tab\tü A",
        "spark.empty": "",
        "spark.end": "last",
    }


@pytest.mark.parametrize("value", ["", "a b", "#!=:", "c:\\d", "ü\n€", "jdbc:x?user=a&password=b c", "tab\tend"])
def test_written_properties_are_read_again(value):
    assert parse_properties(write_properties({"spark.key": value, "spark.more": "x"})) == {
        "spark.key": value,
        "spark.more": "x",
    }


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_the_defaults_of_spark_are_found(tmp_path, variable):
    directory = tmp_path / ("" if variable == "SPARK_CONF_DIR" else "conf")
    directory.mkdir(exist_ok=True)
    assert read_spark_defaults({variable: str(tmp_path)}) == {}
    (directory / "spark-defaults.conf").write_text("spark.master yarn\n")
    assert read_spark_defaults({variable: str(tmp_path)}) == {"spark.master": "yarn"}


def test_the_file_of_properties_is_private_and_removed(tmp_path, monkeypatch):
    """Arguments of the user follow it, so that they take precedence."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    file = tmp_path / "a b.properties"
    with starting_with({"spark.secret": "x"}, file):
        assert os.environ["PYSPARK_SUBMIT_ARGS"] == f"--properties-file '{file}' --verbose pyspark-shell"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() == "spark.secret=x\n"
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--verbose pyspark-shell"
    assert not file.exists()


def test_a_name_of_a_python_is_this_interpreter_here(monkeypatch):
    """Other machines look for the name in their own PATH."""
    name, directory = Path(sys.executable).name, str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "driver")
    for properties, python, path in (
        ({"spark.pyspark.python": name}, name, f"{directory}:/bin"),
        ({"spark.pyspark.python": "./env/bin/python"}, "./env/bin/python", "/bin"),
        ({"spark.pyspark.python": "python-of-others"}, "python-of-others", "/bin"),
    ):
        with working_python(properties):
            assert os.environ["PYSPARK_PYTHON"] == python
            assert os.environ["PATH"] == path
        assert os.environ["PATH"] == "/bin"


def test_settings_of_a_session_need_no_pyspark():
    """A pipeline file can be checked on a machine without Spark."""
    script = "import sys; sys.modules['pyspark'] = None; from quiver.spark import session_settings, session_properties"
    subprocess.run([sys.executable, "-c", script], check=True)
