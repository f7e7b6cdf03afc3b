"""`glassformer explain`: a page that shows how a model computes its answer to one text."""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import ComputeOptions, LanguageOptions

CHECK_TEXT = "The quick brown fox jumps over the lazy dog."
"""The text on which --check looks at a model, unless --text gives another."""
MAX_TOKENS = 20


def explain(
    path: Path,
    *,
    text: str | None = None,
    target: str | None = None,
    out: Path | None = None,
    json: Path | None = None,
    check: bool = False,
    live: bool = False,
    beam: int | None = None,
    max_tokens: int = MAX_TOKENS,
    ablate: tuple[str, ...] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    quiet: bool = False,
    languages: LanguageOptions = LanguageOptions(),  # noqa: B008
    compute: ComputeOptions = ComputeOptions(),  # noqa: B008
) -> None:
    """Show every step from token to prediction: attention, layers, next tokens, beams, attribution, health checks.

    glassformer explain my-model --text "a sentence" --out page.html writes one file that opens in any browser.

    It works for every model that `run` takes. A model that writes text writes its answer first; --target gives the
    answer instead. If the model's training run is beside its folder, the page shows how it learned, too.

    Args:
        path: A model folder, a GGUF or llama2.c file, or org/name for a model in Hugging Face's download cache.
        text: The text that the model reads. Two texts are separated by a tab, as for `run`.
        target: The text of the decoder, instead of what the model writes.
        out: Write the page to this HTML file. An existing file is replaced only if it is such a page.
        json: Write the numbers to this JSON file. An existing file is replaced only if it holds such numbers.
        check: Print the health checks, and exit with status 1 if one fails.
        live: Serve the page, so that text, heads and settings can be changed in it. The address that it prints shows
            the text of --text first, with --beam, --max-tokens and --ablate.
        beam: Beam width. (default: the model's own)
        max_tokens: The most tokens that the model writes.
        ablate: Parts to switch off, such as encoder.layers.0.self_attn.head.3, encoder.layers.0.ffn or positions.
            Layers and heads are counted from 0: the first of these is the fourth head of the first layer.
        host: With --live: address to listen on; the default is this machine only.
        port: With --live: port to listen on; 0 is any free one.
        quiet: Show no progress.
    """
    if live:
        others: dict[str, object] = {"--out": out, "--json": json, "--check": check or None, "--target": target}
        others |= {"--source-language": languages.source_language or None}
        others |= {"--target-language": languages.target_language or None}
        first: dict[str, object] = {"text": text, "beam": beam, "off": ",".join(ablate)}
        if max_tokens != MAX_TOKENS:
            first["max_tokens"] = max_tokens
        _serve(path, host, port, compute, others, first)
        return
    if out is None and json is None and not check:
        raise UsageError("nothing to do: expected --out page.html, --json FILE, --check or --live")
    if text is None and not check:
        raise UsageError("--text is missing: expected the text that the model reads")
    if max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens}: expected 1 or more")
    _check_outputs(out, json)
    from glassformer.checkpoint.download_cache import find_model
    from glassformer.checkpoint.safe_files import write_text
    from glassformer.inspect.explain_options import PARTS, ExplainOptions
    from glassformer.inspect.explanation import Explanation, build_explanation
    from glassformer.inspect.output_files import NUMBERS, check_explanation_file
    from glassformer.progress import reporting

    found_path = find_model(path)
    only_check = out is None and json is None
    options = ExplainOptions(
        target=target,
        max_tokens=max_tokens,
        beam=beam,
        ablate=ablate,
        parts=("health",) if only_check else PARTS,
    )
    pipe = compute.load(found_path)
    if languages != LanguageOptions():
        if not hasattr(pipe, "with_languages"):
            raise UsageError(f"--target-language and --source-language have no effect: {path} has no language codes")
        pipe = pipe.with_languages(languages.source_language, languages.target_language)
    run = run_folder(found_path)
    with reporting(quiet=quiet):
        said = CHECK_TEXT if text is None else text
        found = Explanation(build_explanation(pipe, said, options, name=found_path.name, run=run))
    if json is not None:
        check_explanation_file(json, NUMBERS)  # a file may have been added meanwhile
        write_text(json, found.to_json())
        print(f"wrote {json}")
    if out is not None:
        found.save(out)
        print(f"wrote {out}: open it in a browser")
    if check:
        _report(found.data["health"])


def run_folder(path: Path) -> Path | None:
    """Return the folder of the training run beside a model folder, if it is there."""
    run = path.with_name(f"{path.name}.run")
    return run if run.is_dir() else None


def _check_outputs(out: Path | None, json: Path | None) -> None:
    """Raise an error unless the page may be written to `out` and the numbers to `json`, before a model is loaded."""
    from glassformer.inspect.output_files import NUMBERS, PAGE, check_explanation_file

    for flag, file, kind in (("--out", out, PAGE), ("--json", json, NUMBERS)):
        if file is None:
            continue
        if file.is_dir():
            raise UsageError(f"{flag} {file}: expected a file, but it is a folder")
        check_explanation_file(file, kind)
    if out is not None and json is not None and out.resolve() == json.resolve():
        raise UsageError(f"--out {out} and --json {json} are the same file: expected two names")


def _report(checks: list[dict[str, Any]]) -> None:
    """Print the checks, one line for each, and exit with status 1 if one failed."""
    for one in checks:
        word = "ok  " if one["passed"] else "FAIL"
        print(f"{word} {one['name']}: {one['value']} (expected {_limit(one['limit'])}); {one['explanation']}")
    failed = [one["name"] for one in checks if not one["passed"]]
    if failed:
        sys.exit(1)


def _limit(limit: object) -> str:
    return f"at most {limit:g}" if isinstance(limit, float) and limit else f"{limit}"


def _serve(
    path: Path,
    host: str,
    port: int,
    compute: ComputeOptions,
    others: dict[str, object],
    first: dict[str, object],
) -> None:
    """Serve the page. `others` are flags that have no effect with --live, `first` is what the page shows first."""
    wrong = [flag for flag, value in others.items() if value is not None]
    if wrong:
        raise UsageError(f"{wrong[0]} has no effect with --live: leave out one of them")
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: expected 0 to 65535")
    from glassformer.cli.serve import import_server

    import_server("explain --live")
    from glassformer.checkpoint.download_cache import find_model
    from glassformer.serve.http_app import make_app
    from glassformer.serve.http_server import serve
    from glassformer.serve.served_models import parse_models
    from glassformer.serve.server_options import BatchOptions, ListenOptions, RequestLimits

    listen, limits = ListenOptions(host=host, port=port), RequestLimits()
    models = parse_models((str(find_model(path)),))
    app = make_app(models, compute.load, listen=listen, limits=limits, batch=BatchOptions())

    given = urlencode({name: value for name, value in first.items() if value})
    fragment = f"#{given}" if given else ""

    def say(address: str) -> None:
        print(f"explore {', '.join(models)} at {address}/explore{fragment}", flush=True)
        print("Ctrl-C ends.", file=sys.stderr)

    serve(app, listen, limits, on_start=say)
