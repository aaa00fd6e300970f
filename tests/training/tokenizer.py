"""Makes the built-in model's tokenizer: byte-level BPE, any text can be written, the world's words are tokens."""

from random import Random

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from service.lab.world.relations import NAMINGS
from service.lab.world.scene import UNKNOWN, SceneShape, draw
from service.model.prompt_builder import ASK, PromptPassage
from tests.training.examples import SYSTEMS, drawn_form

VOCABULARY = 4096
SPECIAL = ("<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
SAMPLE = SceneShape((2, 6), (1, 5), links=(1, 3), kinds=tuple(NAMINGS), values=0.3, asides=(0, 2), many_names=True)
WORDS = Regex(r" ?[A-Z]\p{N}(?!\p{N})| ?\p{N}{1,2}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('the roles are system, user and assistant, got ' + message.role) }}{% endif %}"
    "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(*, seed: int, scenes: int = 12000) -> PreTrainedTokenizerFast:
    """A tokenizer fitted on scenes of the world."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(seed, scenes), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[-1],
        pad_token=SPECIAL[-1],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _texts(seed: int, scenes: int) -> list[str]:
    random = Random(seed)
    texts: list[str] = [*SYSTEMS, UNKNOWN] * scenes
    for _ in range(scenes):
        scene, form = draw(random, SAMPLE), drawn_form(random)
        passages = [PromptPassage(passage.text, passage.title) for passage in scene.passages]
        question = random.choice(scene.questions)
        turns = form.turns(passages, question=question.text)
        texts += [part.text for turn in turns for part in turn.parts]
        texts += [text for each in scene.questions for text in (ASK + each.text, each.answer)]
    return texts
