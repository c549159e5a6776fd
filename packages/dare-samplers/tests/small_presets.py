"""Every preset in a few small settings, the first one its simplest."""

from dare_samplers import SamplerConfig, presets

SMALL: dict[str, list[SamplerConfig]] = {
    "ascending": [presets.ascending(12), presets.ascending(16, 3), presets.ascending(8, gamma_min=0.01)],
    "d1": [presets.d1(8, 4)],
    "d_tree_rpo": [presets.d_tree_rpo(8, 4, 4)],
    "dinfer": [
        presets.dinfer(8, 4, tau=0.3, vicinity=(1, 1, 1)),
        presets.dinfer(8, 4, "credit", 0.3, vicinity=None),
        presets.dinfer(8, 4, "hierarchy", 0.5, 0.1, vicinity=None, refresh=1),
        presets.dinfer(8, 4, "hierarchy", 0.5, 0.1, 0.3, vicinity=None, refresh=2),
        presets.dinfer(8, 4, "threshold", 0.3, compat=True),
    ],
    "dllm_rl": [
        presets.dllm_rl(8, 4, 4, "margin_confidence"),
        presets.dllm_rl(8, 4, strategy="dynamic", tau=0.3, further_horizon=2, cache=True),
        presets.dllm_rl(8, 4, 4, "neg_entropy", pad_penalty=2.0, cache=True),
    ],
    "dream": [
        presets.dream(8, 4, "origin", 1.0),
        presets.dream(8, 8, "maskgit_plus", top_k=3),
        presets.dream(8, 8, "topk_margin", 0.0, None),
        presets.dream(8, 8, alg_temp=0.5, compat=True),
    ],
    "eoser": [presets.eoser(8, 4, 4, temperature=1.0)],
    "espo": [presets.espo(8, 4)],
    "fast_dllm": [presets.fast_dllm(8, 4, 0.3, None, cache) for cache in ("none", "prefix", "dual")]
    + [presets.fast_dllm(8, 4, factor=1.0)],
    "fast_dllm_dream": [presets.fast_dllm_dream(8, 4, tau=0.3, cache="dual"), presets.fast_dllm_dream(8, None, 4)],
    "fast_dllm_v2": [presets.fast_dllm_v2(8, 2, 0.3), presets.fast_dllm_v2(8, 2, 0.3, 1.0, lead=True)],
    "first_hitting": [presets.first_hitting(8, 4, top_p=0.9), presets.first_hitting(8, 4, block_causal=True)],
    "just_grpo": [presets.just_grpo(8)],
    "llada": [
        presets.llada(8, 4, 4, guidance=1.5),
        presets.llada(8, 4, 4, 1.0, "random", eos="never", eos_ids=(22,)),
        presets.llada(8, 8, 4, 1.0, "left_to_right", eos="last"),
    ],
    "llada2": [presets.llada2(10, 4, 4, 0.3)],
    "llada21": [presets.llada21(10, 4, max_post_steps=2), presets.llada21(10, 4, "speed", max_post_steps=3)],
    "llada22": [presets.llada22(3, 5, 10, 4, max_post_steps=3, repeat_penalty=1.0, temperature=1.0)],
    "llada_instruct": [presets.llada_instruct("gsm8k").replace(gen_length=8, block_length=8)],
    "mdlm": [presets.mdlm(8, 5)],
    "rcr": [presets.rcr(8, 4, 4), presets.rcr(8, None, 4, "neg_entropy", "cosine", 1.0, proposals=True)],
    "remdm": [presets.remdm(8, 8, kind, 0.5) for kind in ("cap", "rescale", "conf", "loop", "fb")],
    "remdm_llada": [presets.remdm_llada(8, 4)],
    "sdar": [
        presets.sdar(10, 4, 2, "static"),
        presets.sdar(10, 4, None, "dynamic", 0.3),
        presets.sdar(10, 4, 2, "sequential", top_k=3, top_p=0.9),
        presets.sdar(10, 4, None, "entropy_bounded", compat=True),
    ],
    "spg": [presets.spg(8, 4)],
    "threshold": [presets.threshold(8, 4, 0.3)],
}
