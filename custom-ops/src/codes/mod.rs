//! Ops of sparse codes: matching pursuit, the lasso, updates of atoms, and latents of autoencoders.
pub mod atoms;
pub mod lasso;
pub mod latents;
pub mod pursuit;

pub use atoms::{
    AtomLength, AtomUpdate, AtomUses, Bounds, FIGURE_PARTS, StatisticsStep, atom_coherence, atom_coherence_,
    atom_coherence_reference, code_figures_, codes_statistics_, descend_atoms_, descend_atoms_reference,
    row_squares, update_atoms, update_atoms_reference,
};
pub use lasso::{
    LassoMethod, LassoOptions, LassoReport, LassoStep, LineSearch, MaskedSignals, lasso_,
    lasso_gaps_reference, lasso_masked_, lasso_reference, lasso_step_, lasso_step_reference,
};
pub use latents::{
    CodeErrors, CodeWidth, LatentGradients, LatentState, MOST_GROUPS, active, active_reference,
    batch_threshold, batch_threshold_reference, batch_top_k, centred, code_dots, code_errors,
    code_errors_reference, latent_gradients, latent_step_, top_k, top_k_reference, use_sums,
};
pub use pursuit::{
    ErrorTarget, Pursuit, SparseCodes, bomp, bomp_cholesky, bomp_masked, bomp_masked_reference, ols,
    ols_masked, ols_masked_reference, ols_reference, omp_reference, stacked_entries,
};
