"""Tests the wheels and the sdist of scripts/wheel: their tags, sizes and libraries, and installing them where nothing else is.

scripts/test --full runs it, because building takes minutes. The last test downloads PyTorch (3 GB).
"""
# ctest: NEEDS PYTHON LABELS long SLOW ALL PROCESSORS 2 COST 1000

import email
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))
MOST_BYTES = {"wheel": 15_000_000, "sdist": 5_000_000}
GLIBC = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
# Prints the schemes, and the error of the transport mpi if MPI is missing.
PROGRAM = """
import sparsesync
from sparsesync import Trace, errors
print(len(sparsesync.schemes()))
try:
    sparsesync.MpiWorld()
except sparsesync.UnsupportedError as error:
    print(error)
"""
NO_MPI = "cannot load MPI (libmpi.so.40: "


def done(*command, seconds=900, **options):
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=seconds, check=False, **options)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns the folder of the wheels and the sdist."""
    folder = tmp_path_factory.mktemp("wheels")
    result = subprocess.run([ROOT / "scripts/wheel", folder], capture_output=True, text=True, timeout=3600, check=False)
    if "no Python 3.12 or later" in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return folder


def only(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture(params=["cp311-cp311", "cp312-abi3"])
def wheel(built, request):
    return only(built, f"sparsesync-*-{request.param}-*.whl")


def test_there_are_two_wheels_and_an_sdist(built):
    names = sorted(re.sub(r"-\d+\.\d+\.\d+", "", path.name) for path in built.iterdir())
    tags = r"sparsesync-(cp311-cp311|cp312-abi3)-manylinux_2_\d\d_x86_64\.whl"
    assert len(names) == 3 and names[2] == "sparsesync.tar.gz", names
    assert [re.fullmatch(tags, name)[1] for name in names[:2]] == ["cp311-cp311", "cp312-abi3"]


def test_a_wheel_is_small_and_complete(wheel):
    assert wheel.stat().st_size < MOST_BYTES["wheel"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(metadata))
    suffix = ".abi3.so" if "abi3" in wheel.name else ".cpython-311-x86_64-linux-gnu.so"
    assert {name for name in names if ".so" in name} == {f"sparsesync/{module}{suffix}" for module in ("_native", "_analysis")}
    assert {"sparsesync/py.typed", "sparsesync/_native.pyi", "sparsesync/_analysis.pyi", "sparsesync/torch/__init__.py"} <= set(names)
    assert set(fields.get_all("Provides-Extra")) == {"torch", "report", "ucx"}
    assert [each for each in fields.get_all("Requires-Dist") if "extra" not in each] == ["numpy>=1.26"]


def test_a_module_needs_glibc_only_and_is_stripped(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    modules = list(tmp_path.glob("sparsesync/*.so"))
    assert len(modules) == 2
    for module in modules:
        needed = set(re.findall(r"NEEDED.*\[(.+)\]", done("readelf", "-d", module)))
        assert "libc.so.6" in needed and needed <= GLIBC, needed
        assert ".debug_info" not in done("readelf", "-S", "-W", module)
        assert ".symtab" not in done("readelf", "-S", "-W", module)
        exported = [line.split()[-1] for line in done("nm", "-D", "--defined-only", module).splitlines()]
        assert exported == [f"PyInit_{module.name.split('.')[0]}"]


def environment_with(installed, folder, *options):
    """Creates a virtual environment of the tests' Python with the packages of the tests, and installs a wheel or an sdist in it."""
    done("/usr/bin/python3", "-m", "venv", folder)
    python = folder / "bin/python"
    done(python, "-m", "pip", "install", "--no-deps", *options, installed, env={**os.environ, "CXX": "c++"})
    (packages,) = (ROOT / ".venv/lib").glob("python3.*/site-packages")
    only(folder, "lib/python3.*/site-packages").joinpath("tools.pth").write_text(f"{packages}\n", encoding="utf-8")
    return python


def program_in(python, folder):
    """Runs PROGRAM outside the checkout, with the installed package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert str(python.parents[1]) in done(python, "-c", "import sparsesync; print(sparsesync.__file__)", cwd=folder, env=environment)
    return done(python, "-c", PROGRAM, cwd=folder, env=environment)


def test_a_wheel_runs_in_a_fresh_environment(built, tmp_path):
    python = environment_with(only(built, "*-cp311-*.whl"), tmp_path / "env")
    assert int(program_in(python, tmp_path).splitlines()[0]) >= 10


def test_the_sdist_is_small_and_installs(built, tmp_path):
    sdist = only(built, "*.tar.gz")
    assert sdist.stat().st_size < MOST_BYTES["sdist"]
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert not [name for name in names if "/bench/results/" in name or "/docs/pictures/" in name or "/.venv" in name]
    python = environment_with(sdist, tmp_path / "env")
    assert int(program_in(python, tmp_path).splitlines()[0]) >= 10


# Runs in the bare system: installs the wheel with PyTorch, and trains in two processes, over Gloo and over UCX of PyPI. Writes the
# size in MB of the environment after each installation.
SCRIPT = """
set -euo pipefail
for program in cc gcc c++ mpirun; do
  if command -v $program; then echo "the system is not bare"; exit 1; fi
done
python3 -m venv env
wheel=$(echo "$PWD"/*.whl)
for extras in "" [report] [torch] [ucx]; do
  env/bin/pip install "$wheel$extras" | tee pip.out
  du -sm env | sed "s/env/$extras/" >>sizes.out
  case $extras in
    "") env/bin/python program.py >program.out ;;
    "[torch]")
      env/bin/torchrun --nproc-per-node 2 readme.py
      env/bin/torchrun --nproc-per-node 2 backend.py
      env/bin/torchrun --nproc-per-node 2 fsdp2.py
      ;;
    "[ucx]")
      env/bin/python -c 'import sparsesync; print(sparsesync.ucx_version())' >ucx.out
      env/bin/torchrun --nproc-per-node 2 getting_started.py >getting_started.out 2>getting_started.err
      ;;
  esac
done
env/bin/pip install lightning
env/bin/python with_lightning.py
"""


LOGGED = "import logging\nlogging.basicConfig(level=logging.INFO)\n"


def program_of(document, *has):
    """Returns the first program of a document that uses sparsesync.torch and has these texts."""
    text = (ROOT / document).read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    return next(each for each in programs if all(part in each for part in ("sparsesync.torch", *has)))


def test_a_bare_system_trains(built, tmp_path):
    """A Debian 13, whose Python is newer than that of the build, without compiler and MPI."""
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")
    if shutil.which("mmdebstrap", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("mmdebstrap is missing: apt-get install mmdebstrap")
    files = tmp_path / "files"
    files.mkdir()
    shutil.copy(only(built, "*-abi3-*.whl"), files)
    (files / "run.sh").write_text(SCRIPT, encoding="utf-8")
    (files / "program.py").write_text(PROGRAM, encoding="utf-8")
    (files / "readme.py").write_text(program_of("README.md"), encoding="utf-8")
    (files / "backend.py").write_text(program_of("docs/guide/torch-backend.md"), encoding="utf-8")
    model, fsdp2 = (program_of("docs/guide/parallelism.md", each) for each in ("class Model", "fully_shard(model, mesh=mesh, ignored"))
    (files / "fsdp2.py").write_text(model + fsdp2, encoding="utf-8")
    with_lightning = program_of("docs/guide/frameworks.md", "lightning.Trainer(strategy=strategy")
    (files / "with_lightning.py").write_text(with_lightning, encoding="utf-8")
    (files / "getting_started.py").write_text(LOGGED + program_of("docs/getting-started/pytorch.md"), encoding="utf-8")
    root = tmp_path / "root"
    try:
        done(ROOT / "scripts/bare-debian", "--run", files, root, seconds=3000)
        results = root / "root/files"
        schemes, no_mpi = (results / "program.out").read_text(encoding="utf-8").splitlines()
        assert int(schemes) >= 10 and no_mpi.startswith(NO_MPI), no_mpi
        assert re.fullmatch(r"1\.\d+\.\d+\n", (results / "ucx.out").read_text(encoding="utf-8"))
        losses = [float(line.split()[-1]) for line in (results / "getting_started.out").read_text(encoding="utf-8").splitlines()]
        assert len(losses) >= 3 and losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 2
        assert "of 2 over ucx" in (results / "getting_started.err").read_text(encoding="utf-8")
    finally:
        print((root / "root/files/sizes.out").read_text(encoding="utf-8"))
        shutil.rmtree(root, ignore_errors=True)  # 6 GB
