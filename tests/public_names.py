"""Every public name. A change of this list is a change of what users may rely on."""

from __future__ import annotations

PUBLIC = {
    "tsallis": """
        alpha_relu alpha_relu_loss backend budgeted_entmax compat continuous distributions entmax entmax15
        entmax_attention entmax_loss escort estimate_tau estimate_tau_from_scores linear_alpha_relu_loss
        linear_entmax_loss nn normmax sparsemax tsallis_entropy
    """,
    "tsallis.analysis": """
        AttentionLayer AttentionReader BeamTree Comparison ComparisonSummary Contrasts Densities Density
        DensityContrast DensityExample DensitySummary Diversities Diversity DrawnDensity Edge EmptyOutput
        EmptyRate Example HeadCard HeadDensity HeadHistory HeadImportance HeadLoss HeadRole HeadRoles Histogram
        INTERROGATIVES LayerDiversity ModelContrast Options OutputStatistics Outputs ROLES Record RecordedBatch
        Recording Roles RunInput RunSummary Sentence SignalDensity SparseWeights Statistic Sweep SweepPoint
        SweepRun TeacherForcedStep Text TrainingCounts ValueHistory WordContrast alpha_histograms alpha_history
        beam_tree capture_weights collect compare_models count_pieces density density_contrasts density_history
        diversity draw_density empty_rate head_cards head_importance head_roles jensen_shannon
        load_recording mask_head output_statistics output_steps read_model record record_batches save_recording
        sentence_density signal_densities summarize summarize_attention summarize_densities
        summarize_runs summarize_weights sweep teacher_forced_supports to_pandas value_history word_clusters
    """,
    "tsallis.compat": """
        BudgetBisect Entmax15 Entmax15Loss EntmaxBisect EntmaxBisectLoss NormmaxBisect NormmaxBisectLoss Sparsemax
        SparsemaxBisect SparsemaxBisectLoss SparsemaxLoss budget_bisect entmax15 entmax15_loss entmax_bisect
        entmax_bisect_loss normmax_bisect normmax_bisect_loss sparsemax sparsemax_bisect sparsemax_bisect_loss
        sparsemax_loss
    """,
    "tsallis.continuous": """
        Basis BetaGaussian Density Ellipse Elliptical FourierBasis Gaussian GaussianBasis Interval Laplace
        LocationScale Mixture PolynomialBasis PowerBasis ProductBasis Signal Triangular TruncatedParabola
        TruncatedParaboloid Union ValueFunction WholeSpace box_centres cell_centres cell_masses gaussian_grid
        grid_centres grid_masses image_basis match_moments moments paper_image_basis text_basis translation_basis
    """,
    "tsallis.data": """
        BatchPlan Vocabulary make_batch
    """,
    "tsallis.datasets": """
        SOURCES Source get
    """,
    "tsallis.distributions": """
        EntmaxCategorical RelaxedEntmax Support kl_divergence
    """,
    "tsallis.evaluation": """
        CorpusScore Evaluation TeacherForcedScores accuracy evaluate exact_match form_scores levenshtein search_corpus
        teacher_forced_scores translation_scores
    """,
    "tsallis.functional": """
        alpha_relu alpha_relu_loss backend budgeted_entmax entmax entmax15 entmax_attention entmax_loss escort
        estimate_tau estimate_tau_from_scores linear_alpha_relu_loss linear_entmax_loss normmax sparsemax
        tsallis_entropy
    """,
    "tsallis.inference": """
        Answer Continuation Continuations Output Suggestion Suggestions TextRun TextScore open_run
    """,
    "tsallis.integrations.huggingface": """
        AnnealAlpha AttentionLog DensityMeter EntmaxLogitsProcessor FixedAlpha LearnedAlpha TransformersDecoder
        alpha_parameters alphas
        densify find_obstacles from_pretrained lm_loss parameter_groups set_alpha sparsify trainer_loss
    """,
    "tsallis.integrations.huggingface.recording": """
        TransformersReader summarize_texts
    """,
    "tsallis.models": """
        Batch BiLSTMClassifier Decoder DecoderOutput GridClassifier LabelDecoder LanguageModel Memory RNNSeq2Seq
        SignalClassifier Step TransformerSeq2Seq VisualAnswerer
    """,
    "tsallis.nn": """
        AlphaReLULoss AttentionStats ContinuousAttention1d ContinuousAttention2d ContinuousGlobalAttention Entmax
        EntmaxLoss GlobalAttention KeyValueCache LengthScale MultiheadAttention OutputLayer PerHeadAlpha Sparsemax
        TransformerDecoderLayer TransformerEncoderLayer attention_stats densify_module
        parameter_groups sparsify_module
    """,
    "tsallis.report": """
        View attention_matrix image_attention image_panels learned_alphas matrix_panels output_steps output_tree save
        text_attention text_panels
    """,
    "tsallis.report.page": """
        build_page
    """,
    "tsallis.search": """
        Certificate Choice Completions Ensemble Exclusion GeneratedText Hypothesis Result RiskChoice TokenScores
        beam_search complete exact_search exhaustive generate minimum_risk sample score score_tokens
    """,
    "tsallis.tasks": """
        InflectionExample english_verbs load_config read_inflection read_languages
    """,
    "tsallis.training": """
        Checkpoints Log Progress Run Settings Trainer load_run reuse_memory
    """,
}
PUBLIC_NAMES = {module: names.split() for module, names in PUBLIC.items()}
