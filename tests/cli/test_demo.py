import subprocess
import sys

HELP_ALONE = """
import sys
from glassformer.cli import main
sys.argv = ["glassformer", "--help"]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


def glassformer(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "glassformer", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_demo_trains_tells_and_draws(tmp_path):
    result = glassformer("demo", "--steps", "100", "--out", str(tmp_path), "glass")
    assert result.returncode == 0, result.stderr
    assert "glass -> " in result.stdout
    assert "step  100  loss" in result.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"decoder.layers.0.cross_attn.png", "decoder.layers.1.cross_attn.png", "positions.png"}


def test_help_teaches_without_loading_torch():
    result = glassformer("demo", "--help")
    assert result.returncode == 0
    assert "1 to 12 letters" in result.stdout
    result = subprocess.run([sys.executable, "-c", HELP_ALONE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_errors_are_one_line_with_the_way_out():
    result = glassformer("demo", "Über")
    assert result.returncode == 1
    assert result.stderr.strip() == "glassformer: word='Über': expected 1 to 12 letters from a to z"
    assert glassformer("demo", "--stepz", "3").returncode == 2
    assert glassformer("dmeo").returncode == 2
