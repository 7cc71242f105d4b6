"""The whole config tree, one comment per key. Experiments start from `get_config()` and override.

The values here are those of the published method where it has one (method preset aside), sized
for real models on accelerators; `configs/spade_tiny.py` is the laptop-sized default. A key whose
comment says "switch" is left at None here and takes its value from `method.preset`; the values
are given as strict / paper.
"""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict

from spade_jax.designer.prompts import SKILLS


def _switch(kind: type) -> config_dict.FieldReference:
    """A key that the preset fills in."""
    return config_dict.placeholder(kind)


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the locked tree; `arg` is not used, since the base takes no variants."""
    if arg:
        raise ValueError(f"configs/base.py takes no argument, but got {arg!r}")
    config = ConfigDict()

    config.run = run = ConfigDict()
    run.seed = 0  # everything random in the run is derived from it
    run.steps = 400  # policy updates (rollouts) in all; a resumed run goes on up to it
    run.allow_config_change = False  # resume a workdir whose config.json differs

    config.method = method = ConfigDict()
    method.algorithm = "spade"  # spade: designed environments, hint regret; spiral: two-player games against itself
    method.preset = "strict"  # strict | paper: what the switches below and elsewhere default to
    method.paired_seeds = _switch(bool)  # switch True/False: both arms play the same seeds
    method.regret_floor = _switch(bool)  # switch False/True: the designer is paid max(0, regret)
    method.regret_scale = _switch(str)  # switch adaptive/fixed: divide regret by max(.15, 2 median SE), or by .15
    method.plateau_correction = _switch(bool)  # switch True/False: discount a win rate that only the seed decides
    method.invalid_penalty = _switch(bool)  # switch True/False: a rejected first attempt trains, by failure class
    method.invalid_share_cap = _switch(float)  # switch .5/1: rejected programs' share of total |advantage| at most
    method.cap_unverified = _switch(bool)  # switch True/False: at most half the reward for a program without solution()
    method.void_crashes = _switch(bool)  # switch True/False: episodes in a crashing program do not train the agent
    method.truncated_scores_zero = _switch(bool)  # switch False/True: an episode that is cut off returns 0

    config.policy = policy = ConfigDict()
    # tiny, spiral, tictactoe: embedded warm starts; smollm2: that package's model; scratch: random, from architecture;
    policy.init = "scratch"  # or a path: a Hugging Face folder (config.json and safetensors), a .gguf or an .npz
    policy.dtype = "bfloat16"  # of activations: float32 | bfloat16; master weights and reductions are float32
    policy.remat = True  # recompute activations in the backward pass: less memory, more time
    policy.attention = "auto"  # auto: cudnn on GPUs where it can, splash on TPUs, else xla; or one of these
    policy.lora = lora = ConfigDict()  # low-rank adapters, trained in place of the weights, which are kept in dtype
    lora.rank = 0  # of what an adapter adds to a weight; 0: no adapters, all weights are trained
    lora.alpha = 32.0  # what it adds is multiplied by alpha / rank
    lora.targets = ("q", "k", "v", "o", "gate", "up", "down")  # weights with one; the last three are also the experts'
    policy.architecture = arch = ConfigDict()  # used when init is scratch
    arch.vocab_size = 2048  # tokens; must be the tokenizer's
    arch.embed_dim = 512  # width of the residual stream
    arch.num_layers = 8  # blocks
    arch.num_heads = 8  # query heads
    arch.num_kv_heads = 4  # key/value heads; divides num_heads
    arch.head_dim = 64  # of one head; even
    arch.mlp_dim = 1536  # width of the SwiGLU hidden layer
    arch.rope_theta = 10_000.0  # base of the rotary frequencies
    arch.norm_eps = 1e-6  # of RMSNorm
    arch.qk_norm = False  # RMSNorm on queries and keys
    arch.tied_head = True  # the output head is the embedding
    arch.norm_plus_one = False  # RMSNorm multiplies by 1 + scale (Gemma)
    arch.sandwich_norm = False  # RMSNorm on what attention and MLP add to the residual stream, too
    arch.qkv_bias = False  # biases on queries, keys and values
    arch.output_bias = False  # a bias on the attention's output
    arch.mlp_bias = False  # biases in the MLP
    arch.query_scale = 0.0  # multiplies the attention scores; 0: head_dim ** -0.5
    arch.attention_softcap = 0.0  # c in c tanh(score / c); 0: none
    arch.logit_softcap = 0.0  # c in c tanh(logit / c); 0: none
    arch.sliding_window = 0  # tokens that a local layer attends to; 0: no layer is local
    arch.local_layers = ()  # for each layer whether it is local; (): all are where there is a window
    arch.local_rope_theta = 0.0  # base of the rotary frequencies of local layers; 0: as the others
    arch.activation = "silu"  # of the gate: silu | gelu_tanh
    arch.embedding_scale = 1.0  # multiplies the embedded tokens
    arch.num_experts = 0  # experts in every layer's MLP; 0: a dense one
    arch.experts_per_token = 0  # experts that a token goes through
    arch.normalised_router = True  # the weights of those experts add up to 1
    arch.rope_scaling = scaling = ConfigDict()
    scaling.kind = "none"  # none | linear | llama3 | yarn: how rotary frequencies are stretched to longer contexts
    scaling.factor = 1.0  # how many times longer
    scaling.original_context = 0  # tokens of the context before (llama3, yarn)

    config.tokens = tokens = ConfigDict()
    # tiny, spiral, tictactoe: embedded SentencePiece models; policy: what comes with policy.init; or a path: a
    tokens.tokenizer = "tiny"  # SentencePiece .model, a folder with tokenizer.json and a chat template, or a .gguf
    tokens.thinking = True  # models that can do both reason before they answer; others do not ask

    config.sampler = sampler = ConfigDict()
    sampler.slots = 256  # conversations that decode at once, in each process
    sampler.context = 32_768  # tokens of one conversation, prompt and responses; the cache's length
    sampler.block = 32  # tokens decoded between two looks at the environments
    sampler.cache_dtype = "bfloat16"  # of the KV cache: float32 | bfloat16
    sampler.weight_dtype = "policy"  # policy: as policy.dtype; int8: the layers' weights are quantised at each update
    # What a conversation that new weights meet under way has in the cache (rollout.max_staleness):
    sampler.on_swap = "reprefill"  # reprefill: computed anew; stale: kept, which costs nothing and is less exact
    for role, new_tokens, temperature in (("agent", 8192, 0.6), ("designer", 16_384, 0.6), ("hint", 512, 0.3)):
        sampler[role] = sampling = ConfigDict()
        sampling.temperature = temperature  # 0 is greedy
        sampling.top_k = 0  # keep the k likeliest tokens; 0: all
        sampling.top_p = 1.0  # keep the likeliest tokens of this total probability; 1: all
        sampling.min_p = 0.0  # keep tokens at least this share as likely as the likeliest; 0: all
        sampling.max_new_tokens = new_tokens  # of one response; a cut one counts as it stands

    config.rollout = rollout = ConfigDict()
    rollout.environments = "designer"  # designer: the policy writes them; bundled: our families (the baseline)
    rollout.kind = "game"  # game: programs are text games; tool: backends that the agent works with through tools
    rollout.skills = SKILLS  # what programs are asked to train; for tools their domains, see designer/tool_prompts.py
    rollout.active_skills = 3  # skills per regeneration; the list rotates this many at a time
    rollout.places_per_skill = 8  # environments per active skill
    rollout.seeds = 16  # plays per environment and arm in every rollout
    rollout.regenerate_every = 4  # rollouts that play the same environments before new ones are written
    rollout.min_pairs = 8  # complete seed pairs below which an environment gives no gradient
    rollout.max_turns = 25  # agent turns per episode
    rollout.reply_blocks = 2  # decode blocks between an action and its reply, fixed so that timing decides nothing
    # For survival, several times what a rollout takes: time decides what it strikes, and long episodes come first.
    rollout.deadline_secs = 0.0  # after which episodes and matches of a rollout that have not ended are void; 0: none
    # Above 0, timing decides which weights draw a token, and a seed no longer gives the same bits; several processes
    # can have 1 (launch/README.md):
    rollout.max_staleness = 0  # updates that may be unfinished while rollouts go on, which wait where more would be

    config.selfplay = selfplay = ConfigDict()  # two-player games: method.algorithm = spiral
    selfplay.games = ("kuhn_poker",)  # played in training, see spade_jax/envs/games; more may be added on resume
    selfplay.weights = ()  # share of each game in the matches, in the order of games; (): equal shares
    selfplay.matches = 64  # per update
    selfplay.context = "turn"  # turn: every move is a sequence of its own; conversation: all moves of a seat are one
    selfplay.exploring_starts = 0  # random moves, at most, that a match begins with; evaluations begin at the start
    selfplay.max_moves = 200  # of both seats; a match that needs more ends undecided
    selfplay.invalid_penalty = 1.0  # lost by a seat whose move is none; the match ends
    selfplay.invalid_bonus = 0.0  # and what the other seat gets
    selfplay.baselines = "role"  # role: one for each game and seat; shared: one for all
    selfplay.baseline_decay = 0.95  # of the running baselines
    selfplay.opponent = "self"  # self | random | snapshot (the initial policy) | pool (earlier policies) | endpoint
    selfplay.pool = pool = ConfigDict()  # of earlier policies, kept in the workdir
    pool.every_steps = 10  # steps between two that are added, the initial one first
    pool.size = 8  # newest ones drawn from
    pool.sampling = "recent"  # recent: the newer the likelier; hard: the more it wins the likelier; uniform
    selfplay.endpoint = endpoint = ConfigDict()  # an OpenAI-compatible server as the opponent
    endpoint.url = ""  # of its API, e.g. http://localhost:8000/v1
    endpoint.model = ""  # the model's name there
    endpoint.key_variable = "OPENAI_API_KEY"  # environment variable with the key; it is stored and logged nowhere
    endpoint.timeout_secs = 60.0  # of one request
    endpoint.retries = 4  # repetitions of a request that failed for a passing reason, with growing pauses
    endpoint.max_requests = 100_000  # over the whole run; beyond it matches are void
    endpoint.concurrency = 16  # requests under way at a time
    endpoint.max_new_tokens = 1024  # of one reply
    endpoint.temperature = 1.0  # asked for

    config.games = games = ConfigDict()  # the games' own options
    games.kuhn_poker = ConfigDict()
    games.kuhn_poker.rounds = 5  # dealt in one match
    games.kuhn_poker.payoff = "winner"  # winner: 1 for the chip leader; margin: the chips won, over the most possible
    games.kuhn_poker.compat = False  # the original's quirks: bets move no chips, the last round's winner wins
    games.tictactoe = ConfigDict()
    games.negotiation = ConfigDict()
    games.negotiation.turns = 10  # of both seats together
    games.snake = ConfigDict()
    games.snake.size = 6  # cells of one side of the grid
    games.snake.apples = 2  # on the grid at a time
    games.snake.rounds = 30  # after which the longer snake wins
    games.pig_dice = ConfigDict()
    games.pig_dice.target = 50  # points that win
    games.pig_dice.moves = 100  # rolls and holds of both seats, after which the higher score wins
    games.truth_and_deception = ConfigDict()
    games.truth_and_deception.rounds = 2  # of a claim and a question, before the last claim and the guess
    games.liars_dice = ConfigDict()
    games.liars_dice.dice = 3  # of each player at first

    config.designer = designer = ConfigDict()
    designer.style = "full"  # full: instructions for a real language model; tiny: those of the embedded policy
    designer.attempts = 5  # programs tried for one place; the first one trains, the rest fill the pool
    designer.exemplars = 2  # environments of the same skill shown from memory
    designer.negatives = 1  # class names shown as what to avoid
    designer.document_words = 6000  # words of the document shown at most

    config.memory = memory = ConfigDict()
    memory.capacity = 200  # environments kept
    memory.rank = _switch(str)  # switch lower_bound/regret: by regret - SE, one per document and class; or by regret
    memory.eviction = _switch(str)  # switch cells/oldest: evict within (skill, kind, difficulty), or first in
    memory.replay_share = _switch(float)  # switch .25/0: share of places that replay a frontier environment

    config.corpus = corpus = ConfigDict()
    corpus.path = "builtin"  # builtin (Python's documentation), .jsonl[.gz|.zst], .parquet, folder; several by commas
    corpus.weights = ()  # share of each source in the documents drawn, in the order of path; (): equal shares
    corpus.skip_bad_records = False  # count and skip a record without text, where otherwise the run stops and names it
    corpus.chunk_words = 400  # documents are cut into paragraph-aligned chunks of about this many words
    corpus.draw = _switch(str)  # switch epoch/uniform: shuffled without replacement, or independent draws
    corpus.deduplicate = _switch(bool)  # switch True/False: drop near-duplicate documents

    config.gate = gate = ConfigDict()
    gate.checks = _switch(tuple)  # switch all/parse, contract: which checks run, in this order
    gate.seeds = 8  # seeds for mindless policies, perturbed solutions and the comparison of first observations
    gate.solvable_seeds = 5  # seeds that solution() must solve
    gate.determinism_seeds = 2  # seeds replayed in two processes
    gate.trivial_score = 0.1  # a mindless policy must not average more
    gate.distinct_observations = 4  # first observations that must differ over gate.seeds
    gate.sealed_seeds = 16  # seeds whose answers are looked for in observations and hint
    gate.parrot_score = 0.25  # a policy that only repeats the hint must not win more often
    gate.novel_tiers = ("source", "tree", "shingles", "behaviour")  # what is compared with the memory; () nothing
    gate.novel_jaccard = 0.8  # shingles: share of common token runs from which on a program is a duplicate

    config.sandbox = sandbox = ConfigDict()
    sandbox.isolation = "strict"  # strict: never without sandbox.required; best_effort: warn; none: limits only
    # ids, landlock and namespaces are used where the machine has them; these need no privileges:
    sandbox.required = ("descriptors", "session", "limits", "privileges", "seccomp", "accounting")  # layers of strict
    sandbox.hosts = "local"  # where environments run: local, beside each process | ray, on the nodes of a Ray cluster
    sandbox.ray_address = "auto"  # with ray: its address; auto finds the cluster that this machine has joined
    sandbox.max_live = 512  # environments alive at once, in each process
    sandbox.memory_mb_total = 16_384  # memory of all environments of a machine, MiB; beyond it the biggest is ended
    sandbox.limits = limits = ConfigDict()
    limits.memory_mb = 256  # address space of one environment, MiB
    limits.cpu_seconds = 20  # processor time of one environment over its life
    limits.call_seconds = 2.0  # wall time of one step
    limits.reset_seconds = 5.0  # wall time of construction and of reset
    limits.episode_seconds = 60.0  # wall time of all calls of one episode
    limits.processes = 0  # processes it may start
    limits.open_files = 16  # file descriptors it may hold
    limits.file_bytes = 65_536  # largest file it may write
    limits.frame_bytes = 262_144  # largest reply
    limits.observation_chars = 4000  # longest observation

    config.learner = learner = ConfigDict()
    learner.estimator = estimator = ConfigDict()
    # Within an environment's plays or, in two-player games, a game's by seat:
    estimator.agent = "group_zscore"  # ema (running baselines) | group_zscore | group_mean | leave_one_out | none
    estimator.designer = _switch(str)  # switch leave_one_out/group_mean: as above, within a skill
    learner.role_weight = role_weight = ConfigDict()
    role_weight.agent = 1.0  # weight of agent samples in the loss
    role_weight.designer = 4.0  # designer samples are rarer, hence weigh more
    learner.aggregation = "token_mean"  # token_mean | sequence_mean | constant_length
    learner.constant_length = 8192  # the divisor of constant_length, tokens
    learner.clip_low = 0.20  # ratio clipped below at 1 - this
    learner.clip_high = 0.28  # and above at 1 + this
    learner.tis_cap = 2.0  # truncated importance sampling: weight of an off-policy token at most
    learner.kl_coefficient = 0.0  # weight of the k3 divergence from the initial policy
    learner.router_balance = 0.0  # weight of the loss that is least where experts are used evenly; no experts: unused
    # Updates between drawing and training beyond which a trajectory is dropped; designer samples wait by design:
    learner.max_staleness = 8  # at least rollout.regenerate_every - 1 + rollout.max_staleness
    learner.optimizer_steps = 1  # optimiser steps per rollout, each on its share of the trajectories
    learner.micro_batch_tokens = 65_536  # padded tokens per forward pass; more are accumulated
    learner.buckets = (*(q << k for k in range(7, 13) for q in (4, 5, 6, 7)), 32_768)  # lengths, compiled if used
    learner.vocab_chunk = 128  # positions of every row whose logits exist at once
    learner.optimizer = optimizer = ConfigDict()
    optimizer.kind = "adamw"  # adamw; muon: orthogonalised steps for the layers' matrices, AdamW's for the rest
    optimizer.learning_rate = 1e-6  # after warm-up
    optimizer.schedule = "constant"  # constant; cosine: the learning rate falls until the last of run.steps
    optimizer.final_fraction = 0.1  # of the learning rate that is left then
    optimizer.warmup_steps = 0  # optimiser steps of linear warm-up
    optimizer.b1 = 0.9  # decay of Adam's first moment
    optimizer.b2 = 0.98  # decay of Adam's second moment
    optimizer.eps = 1e-8  # Adam's denominator offset
    optimizer.weight_decay = 0.1  # decoupled, on matrices only
    optimizer.clip_norm = 1.0  # global gradient norm at most; 0: unclipped

    config.mesh = mesh = ConfigDict()
    mesh.data = -1  # replicas; -1 takes what the others leave
    mesh.fsdp = 1  # shards of weights and optimiser state over the batch axis
    mesh.tensor = 1  # shards of heads, MLP and vocabulary
    mesh.expert = 1  # shards of experts

    config.evaluation = evaluation = ConfigDict()
    evaluation.every_steps = 20  # steps between evaluations on the held-out probe, also at the start and end; 0: never
    evaluation.instances = 8  # instances per held-out family and difficulty
    evaluation.games = ()  # two-player games beside selfplay.games
    evaluation.opponents = ("random",)  # random | minimax (tic-tac-toe) | initial (policy) | endpoint
    evaluation.matches = 64  # of each game against each opponent, half of them in either seat
    evaluation.rated_against = 0  # snapshots, kept as selfplay.pool says, that the policy meets to be rated; 0: none
    evaluation.readings = 16  # responses per information set from which Kuhn poker's probabilities are read
    evaluation.positions = 128  # of tic-tac-toe in which the policy is asked for a move
    evaluation.temperature = 0.6  # of the agent on the probe; 0 is greedy

    config.checkpoint = checkpoint = ConfigDict()
    checkpoint.dir = ""  # a folder, also gs://BUCKET/PATH (extra [gcs]), of this run alone; "": in its workdir
    checkpoint.save_steps = 10  # steps between checkpoints; 0: only by time and at the end
    checkpoint.save_secs = 600.0  # seconds between checkpoints; 0: only by steps and at the end
    checkpoint.keep = 3  # newest checkpoints kept on disk
    checkpoint.keep_period = 0  # and for good those of steps that this divides; 0: none of them

    config.log = log = ConfigDict()
    log.text_steps = 1  # steps between programs and transcripts shown in TensorBoard
    log.transcripts = 16  # episodes per step kept in transcripts/, hinted and plain in pairs; 0: none

    config.profile = profile = ConfigDict()
    profile.steps = ""  # a:b traces steps a to b - 1 for TensorBoard's profile page; "": none

    config.compile_cache = compile_cache = ConfigDict()
    compile_cache.dir = "auto"  # auto: under the user's cache directory; off; or a directory

    config.lock()
    return config
