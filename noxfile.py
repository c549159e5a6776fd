"""Every check of the workspace, one session each; `nox -l` lists them, `nox -s lint -- …` passes arguments on."""

import hashlib
import json
import os
import shutil
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"  # but `isolated` always starts afresh
nox.options.sessions = ["lint", "types", "build", "tests", "docs", "isolated"]

ROOT = Path(__file__).parent
PACKAGES = ("dare-eval", "dare-models", "dare-objectives", "dare-samplers", "dare-train")
WHOLE_SUITE_ON_WHEEL = ("dare-objectives", "dare-samplers")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
EDITABLE = [argument for package in PACKAGES for argument in ("-e", f"packages/{package}")]
TESTED = ["--group", "tests", "--group", "extras", *EDITABLE]


def pyproject(folder: str) -> dict[str, Any]:
    """The parsed pyproject.toml of a folder, given relative to the root."""
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))


def siblings(package: str) -> list[str]:
    """The workspace members that a package declares, and theirs."""
    declared = {Requirement(line).name for line in pyproject(f"packages/{package}")["project"]["dependencies"]}
    direct = declared.intersection(PACKAGES)
    return sorted(direct.union(*(siblings(name) for name in direct)))


def install(session: nox.Session, *arguments: str) -> None:
    """Install under the development constraints; a local wheel folder counts only where it exists (else uv fails)."""
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    find_links = ["--find-links", wheels] if wheels and Path(wheels).is_dir() else []
    session.install("-c", "constraints/dev.txt", *find_links, *arguments)


# ---------------------------------------------------------------------------------------------------------- lint


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format, import contracts, declared dependencies, sibling bounds, licences, constraints; no torch."""
    install(session, "--group", "lint")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    sources = os.pathsep.join(str(ROOT / "packages" / package / "src") for package in PACKAGES)
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": sources})
    for package in PACKAGES:
        project = pyproject(f"packages/{package}")["project"]
        extras = {
            Requirement(line).name for extra in project.get("optional-dependencies", {}).values() for line in extra
        }
        unused = ["--per-rule-ignores", f"DEP002={'|'.join(sorted(extras))}"] if extras else []
        with session.chdir(f"packages/{package}"):
            session.run("deptry", "src", "--package-module-name-map", "pyyaml=yaml", *unused, silent=True)
    check_sibling_bounds(session)
    check_licences(session)
    check_constraints(session)


def check_sibling_bounds(session: nox.Session) -> None:
    """A member's version lies in every sibling's declared range: uv itself ignores these bounds in a workspace."""
    versions = {package: pyproject(f"packages/{package}")["project"]["version"] for package in PACKAGES}
    for package in PACKAGES:
        project = pyproject(f"packages/{package}")["project"]
        extras = project.get("optional-dependencies", {})
        for line in [*project["dependencies"], *(line for extra in extras.values() for line in extra)]:
            wanted = Requirement(line)
            if wanted.name in versions and (not wanted.specifier or versions[wanted.name] not in wanted.specifier):
                session.error(
                    f"packages/{package}/pyproject.toml wants {line}, packages/{wanted.name}/pyproject.toml has "
                    f"{versions[wanted.name]}: give the requirement a range that holds it"
                )


def check_licences(session: nox.Session) -> None:
    """Every package carries the root's LICENSE, byte for byte."""
    expected = (ROOT / "LICENSE").read_bytes()
    for package in PACKAGES:
        if (ROOT / "packages" / package / "LICENSE").read_bytes() != expected:
            session.error(f"packages/{package}/LICENSE differs from LICENSE: copy the root's file there")


def check_constraints(session: nox.Session) -> None:
    """The constraints were exported from the dependency tables as they are now."""
    for path in sorted((ROOT / "constraints").glob("*.txt")):
        if dependency_hash() not in path.read_text(encoding="utf-8").partition("\n")[0]:
            session.error(f"constraints/{path.name} is older than a pyproject.toml: run `nox -s lock`")


# --------------------------------------------------------------------------------------------------------- types


@nox.session
def types(session: nox.Session) -> None:
    """Pyright over the sources, with the dependencies installed."""
    install(session, "--group", "types", "--group", "extras", *EDITABLE)
    session.run("pyright", *session.posargs)


# --------------------------------------------------------------------------------------------------------- build


@nox.session
def build(session: nox.Session) -> None:
    """One sdist and one wheel of each package into dist/, as an index would take them."""
    install(session, "--group", "build")
    dist = Path("dist")
    shutil.rmtree(dist, ignore_errors=True)
    for package in PACKAGES:
        session.run("uv", "build", "-q", "--no-sources", "-o", str(dist), f"packages/{package}")
    check_distributions(session, dist)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.glob("dare_*"))))


def check_distributions(session: nox.Session, dist: Path) -> None:
    """dist/ holds exactly the expected files, and a wheel holds its import package and nothing of this machine."""
    stems = {
        package: f"{package.replace('-', '_')}-{pyproject(f'packages/{package}')['project']['version']}"
        for package in PACKAGES
    }
    expected = {f"{stem}{end}" for stem in stems.values() for end in (".tar.gz", "-py3-none-any.whl")}
    found = {path.name for path in dist.iterdir() if path.name != ".gitignore"}
    if found != expected:
        session.error(f"dist/ holds {sorted(found)}, expected {sorted(expected)}")
    for package, stem in stems.items():
        module = package.replace("-", "_")
        with zipfile.ZipFile(dist / f"{stem}-py3-none-any.whl") as wheel:
            names = wheel.namelist()
            strangers = [name for name in names if name.split("/")[0] not in {module, f"{stem}.dist-info"}]
            unwanted = [name for name in names if "/tests/" in name or "__pycache__" in name]
            machine = [name for name in names if str(ROOT).encode() in wheel.read(name)]
            missing = {f"{module}/py.typed", f"{stem}.dist-info/licenses/LICENSE"}.difference(names)
        if strangers or unwanted or machine or missing:
            session.error(f"{stem} wheel: {strangers=} {unwanted=} {machine=} {missing=}")


# -------------------------------------------------------------------------------------------------------- tests


@nox.session
def tests(session: nox.Session) -> None:
    """All suites in one environment; `-- packages/dare-samplers/tests` runs one package's under its own settings."""
    # many tests start an interpreter
    install(session, "--compile-bytecode", *TESTED)
    workers = ["-n", "auto", "--maxprocesses", "4"]
    session.run("pytest", "-q", *workers, "--ignore=tests/test_snippets.py", *session.posargs, env=ONE_THREAD)


@nox.session
def matrix(session: nox.Session) -> None:
    """All combinations of strategy, cache, layout, attention and so on, where `tests` takes pairs; half an hour."""
    install(session, "--compile-bytecode", "--group", "tests", *EDITABLE)
    tests = ["packages/dare-samplers/tests", "tests/test_support.py"]
    session.run("pytest", "-q", "-m", "matrix", "-n", "auto", *tests, *session.posargs, env=ONE_THREAD)


@nox.session(reuse_venv=False)
@nox.parametrize("transformers", ["5.17", "5.19", "5.20", "newest"], ids=["5.17", "5.19", "5.20", "newest"])
def models(session: nox.Session, transformers: str) -> None:
    """The families against another transformers: their own tests, golden and cached decoding, the root contract."""
    install(session, "--compile-bytecode", *TESTED)
    wanted = ["--upgrade", "transformers<6"] if transformers == "newest" else [f"transformers=={transformers}.*"]
    session.install(*wanted)
    names = ("cached_decoding", "contract", "golden_decoding", "support", "user_cases")
    tests = [f"tests/test_{name}.py" for name in names]
    session.run("pytest", "-q", "-n", "auto", "packages/dare-models/tests", *tests, *session.posargs, env=ONE_THREAD)


@nox.session
def fuzz(session: nox.Session) -> None:
    """A hundred thousand strange texts for every verifier that is a pure function of strings."""
    install(session, "--group", "tests", *EDITABLE)
    tests = ["packages/dare-eval/tests/test_verify_more.py", "-k", "strange_texts"]
    session.run("pytest", "-q", "-n", "auto", *tests, *session.posargs, env={**ONE_THREAD, "DARE_FUZZ": "100000"})


@nox.session
def zero3(session: nox.Session) -> None:
    """Every family in partitioned parameters: DeepSpeed ZeRO-3 on two processes of this machine."""
    install(session, "--group", "zero3", *TESTED)
    session.run("pytest", "-q", "-m", "zero3", "tests/zero3", *session.posargs, env=ONE_THREAD)


def bridge(session: nox.Session, extra: str) -> None:
    """Another harness, unmodified, in an environment of its own: all families, item by item."""
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    find_links = ["--find-links", wheels] if wheels and Path(wheels).is_dir() else []
    packages = [argument for name in siblings("dare-eval") for argument in ("-e", f"packages/{name}")]
    constraints = ["-c", f"constraints/{extra}.txt", *find_links]
    session.install(*constraints, "--group", "tests", *packages, "-e", f"packages/dare-eval[{extra}]")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", **ONE_THREAD}
    test = f"tests/bridges/test_{extra.replace('-', '_')}.py"
    strict = ["-o", "filterwarnings=default"]  # what the harness warns of is its own business
    session.run("pytest", "-q", "-m", "harness", *strict, test, *session.posargs, env=offline)


@nox.session
def opencompass(session: nox.Session) -> None:
    """OpenCompass 0.5: generation and likelihood of every family equal `dare_eval.evaluate`."""
    bridge(session, "opencompass")


@nox.session
def lm_eval(session: nox.Session) -> None:
    """lm-evaluation-harness 0.4: generation and likelihood of every family equal `dare_eval.evaluate`."""
    bridge(session, "lm-eval")


@nox.session
def docs(session: nox.Session) -> None:
    """Python blocks of every README and docs page, top to bottom, and the doctests of every source module."""
    install(session, *TESTED)
    sources = [f"packages/{package}/src" for package in PACKAGES]
    bridges = [f"--ignore=packages/dare-eval/src/dare_eval/bridges/{name}.py" for name in ("lm_eval", "opencompass")]
    tests = ["--doctest-modules", *bridges, "tests/test_snippets.py", *sources]
    session.run("pytest", "-q", *tests, *session.posargs, env=ONE_THREAD)


@nox.session(reuse_venv=False)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def isolated(session: nox.Session, package: str) -> None:
    """One built wheel and its declared siblings alone in a fresh venv, tested from outside the repository."""
    declared = siblings(package)
    options = [] if package in WHOLE_SUITE_ON_WHEEL else ["-m", "wheel"]
    options += ["-W", "ignore:Failed to initialize NumPy:UserWarning"]  # torch's own, where nothing brings numpy
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        for name in (package, *declared):
            session.run("uv", "build", "-q", "--wheel", "--no-sources", "-o", str(wheels), f"packages/{name}")
        install(session, "--no-sources", "--group", "tests", *map(str, sorted(wheels.glob("*.whl"))))
        shutil.copytree(f"packages/{package}/tests", f"{folder}/tests")
        shutil.copy(f"packages/{package}/pyproject.toml", folder)
        shutil.copy(".ci/prove_alone.py", folder)
        with session.chdir(folder):
            session.run("python", "-I", "prove_alone.py", package, *sorted({*PACKAGES} - {package, *declared}))
            session.run("python", "-I", "-m", "pytest", "-q", *options, *session.posargs, env=ONE_THREAD)


# --------------------------------------------------------------------------------------------------- demo, lock


@nox.session
def demo(session: nox.Session) -> None:
    """SFT, then RL, then evaluation of a tiny model on this machine; arguments go to `dare-train demo`."""
    install(session, *EDITABLE)
    session.run("dare-train", "demo", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve anew and export constraints/*.txt; `-- --upgrade` takes the newest of everything."""
    session.run("uv", "lock", *session.posargs)
    plain = ["--no-emit-workspace", "--no-hashes", "--no-annotate", "--no-header"]
    extras = {name: f"--extra={name}" for name in ("vllm", "opencompass", "lm-eval")}
    for name, choice in {"dev": "--group=dev", **extras}.items():
        path = Path("constraints", f"{name}.txt")
        session.run("uv", "export", "-q", "--frozen", "--all-packages", choice, *plain, "-o", str(path), silent=True)
        pins = path.read_text(encoding="utf-8")
        path.write_text(
            f"# Written by `nox -s lock` from dependency tables {dependency_hash()}.\n{pins}", encoding="utf-8"
        )


def dependency_hash() -> str:
    """Hash of everything that the resolution reads from the six pyproject.toml files."""
    tables: list[Any] = []
    for folder in (".", *(f"packages/{package}" for package in PACKAGES)):
        data = pyproject(folder)
        project, uv = data["project"], data.get("tool", {}).get("uv", {})
        tables += [project.get(key) for key in ("requires-python", "dependencies", "optional-dependencies")]
        tables += [uv.get(key) for key in ("constraint-dependencies", "conflicts", "override-dependencies")]
        tables += [data.get("dependency-groups")]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]
