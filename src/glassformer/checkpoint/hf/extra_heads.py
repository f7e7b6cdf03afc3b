"""Heads of HF checkpoints that our models have no place for, such as BERT's pooler and ELECTRA's discriminator.

They are skipped when a model is loaded (`skipped_names`), and written back when an HF folder is converted to another
(`read_extra_heads`), so that HF loads the same model again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer.checkpoint.external_model import ExternalModel
from glassformer.checkpoint.hf import family_by_type
from glassformer.checkpoint.hf.name_tables import naming_in_file
from glassformer.checkpoint.hf.values import read_architecture
from glassformer.models import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ExtraHeads:
    """The tensors that our model lacks, under HF's names, and what HF needs to read them again."""

    tensors: Mapping[str, Tensor]
    architecture: str
    """The HF class that saved the checkpoint, or ""."""
    has_prefix: bool
    """Whether the names of the body begin with the family's prefix, although our model may have no head."""


def skipped_names(external: ExternalModel, config: ModelConfig) -> list[str]:
    """Return the names of the stored tensors of extra heads, which a model of this config does not read."""
    family = family_by_type(external.config.get("model_type"))
    names = frozenset(external.tensors.keys())
    in_file = naming_in_file(family, names)
    used = {in_file(rule.hf_name) for rule in family.table(config)}
    return sorted(name for name in names - used if re.search(family.extra_heads, name))


def read_extra_heads(external: ExternalModel, config: ModelConfig) -> ExtraHeads | None:
    """Read the tensors that `skipped_names` lists; None if there are none."""
    names = skipped_names(external, config)
    if not names:
        return None
    prefix = family_by_type(external.config.get("model_type")).prefix
    return ExtraHeads(
        tensors={name: external.tensors[name] for name in names},
        architecture=read_architecture(external.config),
        has_prefix=any(name.startswith(prefix) for name in external.tensors.keys()),  # noqa: SIM118
    )


def modules_of(names: Sequence[str]) -> list[str]:
    """Return the names of the modules that hold these tensors: `pooler.dense` for `pooler.dense.weight`."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def skipped_heads_note(names: Sequence[str]) -> str | None:
    """Return a sentence about skipped heads for the user; None if there are none but poolers."""
    heads = [name for name in modules_of(names) if "pooler" not in name]
    if not heads:
        return None
    return f"skipped {', '.join(heads)}: a head that Glassformer does not have. convert --to hf keeps it"
