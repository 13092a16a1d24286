"""Sample from a sparse distribution in `generate`, and read few of the stored keys."""

from __future__ import annotations

import inspect
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, TemperatureLogitsWarper
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from tsallis.errors import check_real
from tsallis.functional.maps import log_entmax
from tsallis.functional.rows import alpha_number
from tsallis.huggingface.attention import STORE
from tsallis.nn import KeyValueCache, ScreenedKeys
from tsallis.ops.transforms import traced
from tsallis.search.options import MIN_TEMPERATURE

# Processors that `generate` runs after the caller's processors, each with the settings that disable it. A temperature
# needs no such setting, because its effect is undone.
NEUTRAL = {
    "TopHLogitsWarper": "top_h=None",
    "TopKLogitsWarper": "top_k=0",
    "TopPLogitsWarper": "top_p=1.0",
    "MinPLogitsWarper": "min_p=None",
    "TypicalLogitsWarper": "typical_p=1.0",
    "EpsilonLogitsWarper": "epsilon_cutoff=0.0",
    "EtaLogitsWarper": "eta_cutoff=0.0",
    "WatermarkLogitsProcessor": "watermarking_config=None",
    "SynthIDTextWatermarkLogitsProcessor": "watermarking_config=None",
}


class EntmaxLogitsProcessor(LogitsProcessor):
    r"""Logits processor that samples with entmax instead of softmax, so that improbable tokens have probability zero.

    .. math:: p = \mathrm{entmax}_\alpha(z / T)

    The scores become :math:`\log p`, so that the softmax of `generate` returns :math:`p`. The number of possible tokens
    depends on the model's certainty. Top-k and top-p are not needed.

    Call `generate` with `do_sample=True, top_k=0, top_p=1.0`. `generate` applies top-k, top-p, min-p and similar
    settings after this processor, and many models set them. They would change :math:`p`, so a call with them raises an
    error that names the setting and the value to pass. The processor undoes a temperature of `generate` or of the
    model, and warns; pass `temperature` here instead. :math:`z` are the scores after penalties and forbidden tokens.

    `support_sizes` has one column per step of the last call of `generate`. A call whose prompts are the output of the
    previous call counts as the same call. In assisted generation, the last columns may belong to drafts that were not
    accepted. In beam search, a column belongs to the beams of its step, which need not be prefixes of the output.

    Args:
        alpha: Alpha, at least 1; larger values are sparser, 1 is softmax.
        temperature: Divisor of the scores, at least 1e-300; below 1, fewer tokens are possible.

    Raises:
        ValueError: The alpha is below 1, or the temperature is below 1e-300 or not finite.

    Example:
        >>> processor = EntmaxLogitsProcessor(alpha=1.5)
        >>> scores = processor(torch.tensor([[3]]), torch.tensor([[2.0, 1.0, 0.1]]))
        >>> scores.softmax(-1), processor.support_sizes
        (tensor([[0.8307, 0.1693, 0.0000]]), tensor([[2]]))
    """

    def __init__(self, alpha: float = 1.5, temperature: float = 1.0) -> None:
        self.alpha, self.temperature = alpha_number(alpha), check_real("temperature", temperature, MIN_TEMPERATURE)
        self._ids: Tensor | None = None  # ids of the last step
        self._start = 0  # length of the prompts
        self._sizes: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities [batch, classes], -inf outside the support; `generate` calls it at every step.

        Raises:
            ValueError: A setting of `generate` would change the probabilities.
        """
        frame, later_temperature = inspect.currentframe(), 1.0
        if frame is not None and frame.f_back is not None:
            later_temperature = self._check_followers(frame.f_back.f_locals.get("self"), scores.shape[-1])
        if not self._continues(input_ids):  # a new call of `generate`
            self._start = input_ids.shape[1]
        del self._sizes[input_ids.shape[1] - self._start :]  # assisted generation replaces the steps of drafts
        self._ids = input_ids
        log_probs = log_entmax(scores.double() / self.temperature, self.alpha)
        self._sizes.append((log_probs > -torch.inf).sum(-1))
        return (log_probs * later_temperature).to(scores.dtype)

    def _check_followers(self, processors: Any, classes: int) -> float:
        """Return the temperature that the calling list of processors applies after this processor.

        Raises:
            ValueError: The list changes the probabilities in another way.
        """
        temperature = 1.0
        if not isinstance(processors, LogitsProcessorList) or self not in processors:
            return temperature
        for processor in processors[processors.index(self) + 1 :]:
            setting = NEUTRAL.get(type(processor).__name__)
            keeps_all = getattr(processor, "top_k", 0) >= classes or getattr(processor, "min_p", None) == 0
            if setting is not None and not keeps_all:
                name = setting.partition("=")[0]
                raise ValueError(
                    f"generate would apply {name} after entmax. To turn it off, pass {setting} to generate."
                )
            if isinstance(processor, TemperatureLogitsWarper):
                temperature *= processor.temperature
        if temperature != 1:
            warnings.warn(
                f"temperature {temperature:g} of generate has no effect: pass it to EntmaxLogitsProcessor instead",
                stacklevel=3,
            )
        return temperature

    def _continues(self, input_ids: Tensor) -> bool:
        """Return whether every sentence extends a sentence of the last step by one token, in any order.

        Assisted generation may also return to the beginning of a sentence, to extend it by another token.
        """
        last_ids, prefixes = self._ids, input_ids[:, :-1]
        if last_ids is None or len(last_ids) != len(prefixes) or last_ids.device != prefixes.device:
            return False
        if self._start < input_ids.shape[1] <= last_ids.shape[1]:
            return torch.equal(last_ids[:, : prefixes.shape[1]], prefixes)
        if last_ids.shape != prefixes.shape:
            return False
        return torch.equal(last_ids, prefixes) or len(torch.cat([last_ids, prefixes]).unique(dim=0)) == len(
            last_ids.unique(dim=0)
        )

    @property
    def support_sizes(self) -> Tensor:
        """Return the number of possible tokens per step of the last call of `generate` [batch or beams, steps]."""
        return torch.stack(self._sizes, -1) if self._sizes else torch.empty(0, 0, dtype=torch.long)


class ScreenedCache(DynamicCache):
    """Cache for `generate` from which sparse attention reads few keys: a :class:`tsallis.nn.ScreenedKeys` per layer.

    Outputs are those of `DynamicCache`, up to rounding. On a CPU, greedy search and sampling are faster after long
    contexts. Beam search encodes the keys again at each step, which costs more than it saves. Half precision takes
    three times as much memory, because keys and values are stored in float32, too. Do not change stored keys in place:
    the scan would not see the change. Models with an encoder need
    `EncoderDecoderCache(ScreenedCache(), ScreenedCache())` from Transformers. Models with recurrent or convolutional
    layers, such as Jamba, are not supported: most of them raise a `NotImplementedError`.

    Args:
        config: Ignored, because masks contain the sliding windows; `DynamicCache` has the same argument.
        offloading: Must be False.

    Raises:
        ValueError: `offloading` is True.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from tsallis.huggingface import sparsify
        >>> model = sparsify(GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=50)))
        >>> prompt = torch.randint(50, (1, 20))
        >>> model.generate(prompt, past_key_values=ScreenedCache(), max_new_tokens=4, min_new_tokens=4).shape
        torch.Size([1, 24])
    """

    def __init__(self, config: Any = None, *, offloading: bool = False) -> None:
        # T5Gemma replaces its second cache, and passes these arguments.
        if offloading:
            raise ValueError(f"offloading must be False for ScreenedCache, got {offloading!r}")
        Cache.__init__(self, layer_class_to_replicate=_ScreenedLayer)

    def _reject_states(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            "ScreenedCache stores only keys and values, but this model has recurrent or convolutional layers: "
            "call it without ScreenedCache"
        )

    get_conv_state = get_recurrent_state = update_conv_state = update_recurrent_state = _reject_states
    has_previous_state = _reject_states


class _ScreenedLayer(DynamicLayer):
    """Layer of a cache whose keys name their store, so that the attention function finds it."""

    keys: Tensor
    values: Tensor
    store: ScreenedKeys | None = None
    original: KeyValueCache  # the store, or in half precision the keys and values as they were given
    last: Tensor | None = None  # the keys after the last update

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if key_states.device.type != "cpu" or torch.is_grad_enabled() or traced():
            result: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return result
        key_states = key_states.to(value_states.dtype)  # under autocast, rotated keys have another dtype
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.store is None or self.keys is not self.last:  # new, cropped or reordered
            self.store = ScreenedKeys()
            self.original = self.store if self.keys.dtype.itemsize >= 4 else KeyValueCache()
            if self.keys.numel():
                self._append(self.store, self.keys, self.values)
        self._append(self.store, key_states, value_states)
        self.last = self.keys
        setattr(self.keys, STORE, (weakref.ref(self.store), weakref.ref(self.values)))
        return self.keys, self.values

    def __getstate__(self) -> dict[str, Any]:
        """Return the keys and values without their store, which the next update makes again."""
        state = {name: x for name, x in self.__dict__.items() if name not in ("store", "original", "last")}
        return state | ({"keys": self.keys.detach()} if self.is_initialized else {})  # without the attribute

    def _append(self, store: ScreenedKeys, keys: Tensor, values: Tensor) -> None:
        read = store.append(keys, values)
        self.keys, self.values = read if self.original is store else self.original.append(keys, values)
