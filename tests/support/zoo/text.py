"""Text encoders and decoder language models."""

from __future__ import annotations

from typing import Any

from tests.support.zoo.entry import Draw, Entry, define, integers, mask

SIZES = {"batch": 3, "seq": 11}
TEXT: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = integers("batch", "seq")
MASK = mask("batch", "seq")


def encoder(name: str, model: str, settings: dict[str, Any] | None = None, **extra: Draw) -> Entry:
    """A text encoder over ids and a mask with some padding."""
    return define(
        name, "text", model, TEXT | (settings or {}), {"input_ids": IDS, "attention_mask": MASK} | extra, SIZES
    )


def decoder(
    name: str, model: str, settings: dict[str, Any] | None = None, cache: bool = False, masked: bool = False
) -> Entry:
    """A decoder over ids, whose outputs hold the keys and values it computed where `cache` is set."""
    draws = {"input_ids": IDS} | ({"attention_mask": MASK} if masked else {})
    return define(name, "text", model, TEXT | (settings or {}), draws, SIZES, {"use_cache": cache})


GROUPED = {"num_key_value_heads": 2, "head_dim": 8}

ENTRIES: tuple[Entry, ...] = (
    encoder("albert", "AlbertModel", {"embedding_size": 16}),
    encoder("bert", "BertModel"),
    encoder("bert-masked-lm", "BertForMaskedLM"),
    encoder("big-bird", "BigBirdModel", {"attention_type": "original_full"}),
    encoder("camembert", "CamembertModel"),
    encoder("convbert", "ConvBertModel", {"embedding_size": 32}),
    encoder("data2vec-text", "Data2VecTextModel"),
    encoder("deberta", "DebertaModel", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    encoder("deberta-v2", "DebertaV2Model", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    encoder("distilbert", "DistilBertForSequenceClassification", {"hidden_dim": 72}),
    encoder("electra", "ElectraModel", {"embedding_size": 16}),
    encoder("ernie", "ErnieModel"),
    encoder("esm", "EsmModel", {"position_embedding_type": "rotary", "mask_token_id": 3}),
    encoder("flaubert", "FlaubertModel"),
    define(
        "funnel",
        "text",
        "FunnelModel",
        {"vocab_size": 101, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 72},
        {"input_ids": IDS, "attention_mask": MASK},
        SIZES,
    ),
    encoder("ibert", "IBertModel"),
    encoder("longformer", "LongformerModel", {"attention_window": 4}),
    encoder("luke", "LukeModel", {"entity_vocab_size": 20, "entity_emb_size": 16}),
    encoder("megatron-bert", "MegatronBertModel"),
    encoder(
        "mobilebert", "MobileBertModel", {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}
    ),
    encoder("modernbert", "ModernBertModel", {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}),
    encoder("mpnet", "MPNetModel"),
    encoder("mra", "MraModel"),
    encoder("nomic-bert", "NomicBertModel"),
    encoder("nystromformer", "NystromformerModel", {"num_landmarks": 64, "segment_means_seq_len": 64}),
    encoder("rembert", "RemBertModel", {"input_embedding_size": 16, "output_embedding_size": 16}),
    encoder("roberta", "RobertaForTokenClassification"),
    encoder("roberta-prelayernorm", "RobertaPreLayerNormModel"),
    encoder("roc-bert", "RoCBertModel", {"pronunciation_vocab_size": 50, "shape_vocab_size": 60}),
    encoder("roformer", "RoFormerModel", {"embedding_size": 16}),
    encoder("splinter", "SplinterModel"),
    encoder("squeezebert", "SqueezeBertModel", {"embedding_size": 32}),
    encoder("tapas", "TapasModel"),
    encoder("xlm", "XLMModel"),
    encoder("xlm-roberta", "XLMRobertaForQuestionAnswering"),
    encoder("xlm-roberta-xl", "XLMRobertaXLModel"),
    define(
        "xlnet",
        "text",
        "XLNetModel",
        {"vocab_size": 101, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 72},
        {"input_ids": IDS, "attention_mask": MASK},
        SIZES,
        {"use_mems": False},
    ),
    encoder("xmod", "XmodModel", {"default_language": "en_XX"}),
    encoder("yoso", "YosoModel"),
    encoder("canine", "CanineModel", {"num_hash_buckets": 64, "local_transformer_stride": 8}),
    define("fnet", "text", "FNetModel", TEXT, {"input_ids": IDS}, SIZES),
    encoder("dpr", "DPRQuestionEncoder", {"projection_dim": 16}),
    encoder(
        "bert-next-sentence", "BertForNextSentencePrediction", token_type_ids=integers("batch", "seq", low=0, high=2)
    ),
    decoder("apertus", "ApertusForCausalLM", GROUPED),
    decoder("arcee", "ArceeForCausalLM", GROUPED),
    decoder("biogpt", "BioGptForCausalLM"),
    decoder("bloom", "BloomForCausalLM"),
    decoder("codegen", "CodeGenForCausalLM", {"rotary_dim": 4}),
    decoder("cohere", "CohereForCausalLM", GROUPED),
    decoder("cohere2", "Cohere2ForCausalLM", GROUPED),
    decoder("ctrl", "CTRLModel", {"dff": 72}),
    decoder("diffllama", "DiffLlamaForCausalLM", GROUPED),
    decoder("ernie4_5", "Ernie4_5ForCausalLM", GROUPED),
    decoder("exaone4", "Exaone4ForCausalLM", GROUPED),
    decoder("falcon", "FalconForCausalLM"),
    decoder("gemma", "GemmaForCausalLM", GROUPED),
    decoder("gemma2", "Gemma2ForCausalLM", GROUPED, cache=True),
    decoder("gemma3", "Gemma3ForCausalLM", GROUPED | {"sliding_window": 8}),
    decoder("glm", "GlmForCausalLM", GROUPED),
    decoder("glm4", "Glm4ForCausalLM", GROUPED),
    decoder("gpt2", "GPT2LMHeadModel", cache=True, masked=True),
    decoder("gpt-bigcode", "GPTBigCodeForCausalLM"),
    decoder("gpt-neo", "GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 1]], "window_size": 4}),
    decoder("gpt-neox", "GPTNeoXForCausalLM", masked=True),
    decoder("gptj", "GPTJForCausalLM", {"rotary_dim": 4}),
    decoder("granite", "GraniteForCausalLM", GROUPED),
    decoder("helium", "HeliumForCausalLM", GROUPED),
    decoder("llama", "LlamaForCausalLM", GROUPED, cache=True, masked=True),
    decoder("llama-no-cache", "LlamaForCausalLM", GROUPED, masked=True),
    decoder("mistral", "MistralForCausalLM", GROUPED | {"sliding_window": 8}, cache=True),
    decoder("mpt", "MptForCausalLM"),
    decoder("nemotron", "NemotronForCausalLM", GROUPED),
    decoder("olmo", "OlmoForCausalLM", GROUPED),
    decoder("olmo2", "Olmo2ForCausalLM", GROUPED),
    decoder("openai-gpt", "OpenAIGPTLMHeadModel"),
    decoder("opt", "OPTForCausalLM", masked=True),
    decoder("persimmon", "PersimmonForCausalLM"),
    decoder("phi", "PhiForCausalLM", cache=True),
    decoder("phi3", "Phi3ForCausalLM", GROUPED),
    decoder("qwen2", "Qwen2ForCausalLM", GROUPED, cache=True),
    decoder("qwen3", "Qwen3ForCausalLM", GROUPED, cache=True, masked=True),
    decoder("smollm3", "SmolLM3ForCausalLM", GROUPED),
    decoder("stablelm", "StableLmForCausalLM", GROUPED),
    decoder("starcoder2", "Starcoder2ForCausalLM", GROUPED),
    decoder("xglm", "XGLMForCausalLM"),
    decoder("trocr", "TrOCRForCausalLM"),
    define(
        "reformer",
        "text",
        "ReformerModel",
        TEXT
        | {
            "axial_pos_embds": False,
            "attention_head_size": 8,
            "feed_forward_size": 72,
            "attn_layers": ["local", "lsh"],
            "local_attn_chunk_length": 4,
            "lsh_attn_chunk_length": 4,
            "num_buckets": 4,
            "hash_seed": 0,
            "is_decoder": False,
        },
        {"input_ids": IDS, "attention_mask": MASK},
        SIZES,
        {"use_cache": False},
    ),
)
