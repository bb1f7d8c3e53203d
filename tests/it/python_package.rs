//! The Python package: its wheel is built, installed into a new environment, and tested there against this server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{REAL_PEERS, SPINDLE, python_with_pyzmq};

/// What builds and tests the wheel.
const TOOLS: &str = "import build, celery, hatchling, mypy, pytest, xxhash";
/// Prints the folder of the packages of an environment.
const PACKAGES: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{complaint}", output.status);
    text
}

/// The Python that has the tools. Without it this prints a notice, unless real peers are demanded.
fn python_with_tools() -> Option<PathBuf> {
    let python = python_with_pyzmq()?;
    let found = Command::new(&python).args(["-c", TOOLS]).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    assert!(std::env::var_os(REAL_PEERS).is_none(), "{REAL_PEERS} is set, and {} lacks {TOOLS}", python.display());
    eprintln!("skipped: {} has not all of: {TOOLS}; tests/run installs them", python.display());
    None
}

/// A new environment with the wheel. pyzmq and pytest come from the other one, so that nothing is downloaded.
fn environment(python: &Path, folder: &Path) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clients/python");
    let wheels = folder.join("wheels");
    run(Command::new(python).args(["-m", "build", "--wheel", "--no-isolation", "--outdir"]).arg(&wheels).arg(&package));
    let wheel = std::fs::read_dir(&wheels).expect("the wheel's folder is there").next().expect("a wheel is built");
    let own = folder.join("venv");
    run(Command::new(python).args(["-m", "venv", "--without-pip"]).arg(&own));
    let own_python = own.join("bin/python");
    let pip = ["-m", "pip", "--disable-pip-version-check", "--python"];
    let install = ["install", "--quiet", "--no-deps", "--no-index"];
    run(Command::new(python).args(pip).arg(&own_python).args(install).arg(wheel.expect("the wheel is there").path()));
    let packages = |python: &Path| PathBuf::from(run(Command::new(python).args(["-c", PACKAGES])).trim());
    let borrowed = packages(python).to_string_lossy().into_owned();
    std::fs::write(packages(&own_python).join("borrowed.pth"), borrowed).expect("the environment is written");
    own_python
}

#[test]
fn the_wheel_does_what_its_tests_and_its_documentation_say() {
    let Some(python) = python_with_tools() else { return };
    let target = Path::new(SPINDLE).parent().expect("the program is in a folder");
    let folder = tempfile::Builder::new().prefix("python-package-").tempdir_in(target).expect("target is writable");
    let own_python = environment(&python, folder.path());
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clients/python/tests");
    let mut pytest = Command::new(own_python);
    pytest.args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]).current_dir(tests);
    println!("{}", run(pytest.env("SPINDLE_BIN", SPINDLE).env("PYTHONDONTWRITEBYTECODE", "1")));
}
