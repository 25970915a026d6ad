//! What a configuration says of steps.
use super::whitening::WhiteningKind;
use serde::{Deserialize, Serialize};

/// What a configuration says of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(super) enum Notes {
    Scale {
        factor: f64,
    },
    Center {
        n_features: usize,
    },
    Standardise {
        n_features: usize,
    },
    #[serde(rename = "minmax")]
    MinMax {
        n_features: usize,
    },
    Robust {
        n_features: usize,
    },
    Log1p,
    RowSum {
        total: f64,
    },
    RowMean,
    Contrast {
        regulariser: f64,
    },
    Rescale {
        deviation: f64,
    },
    Pca {
        n_features: usize,
        n_components: usize,
    },
    Whiten {
        kind: WhiteningKind,
        epsilon: f64,
        n_features: usize,
        n_components: usize,
    },
}
