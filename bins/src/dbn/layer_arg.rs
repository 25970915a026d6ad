//! A layer of a network, as the option `--layers` names it.
use anyhow::{Context, Result};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::RbmConfig;
use chandlery_datasets::ImageShape;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A layer: `dense:N`, a bare `N`, or `patch:WINDOW/STRIDExHIDDEN`. As text, which run folders hold too, it is what [`FromStr`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LayerArg {
    /// Hidden units that see everything below.
    Dense(usize),
    /// Square windows of the layer below, each with hidden units of its own.
    Patch {
        /// Side of a window, in places.
        window: usize,
        /// Distance between neighbouring windows, in places.
        stride: usize,
        /// Hidden units of each window.
        hidden: usize,
    },
}

/// The largest number in a layer: numbers of units and weights then fit 64 bits.
const MOST: usize = 1_000_000_000;

impl FromStr for LayerArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |n: &str| n.parse().ok().filter(|n| (1..=MOST).contains(n));
        let patch = |text: &str| {
            let (window, rest) = text.split_once('/')?;
            let (stride, hidden) = rest.split_once('x')?;
            Some(Self::Patch { window: number(window)?, stride: number(stride)?, hidden: number(hidden)? })
        };
        let layer = match text.split_once(':') {
            None => number(text).map(Self::Dense),
            Some(("dense", n)) => number(n).map(Self::Dense),
            Some(("patch", text)) => patch(text),
            Some(_) => None,
        };
        layer.ok_or_else(|| {
            format!(
                "must be dense:N, N or patch:WINDOW/STRIDExHIDDEN with whole numbers of at least 1, such as patch:8/4x32, got {text}"
            )
        })
    }
}

/// The same text as [`FromStr`] reads.
impl fmt::Display for LayerArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(n) => write!(f, "dense:{n}"),
            Self::Patch { window, stride, hidden } => write!(f, "patch:{window}/{stride}x{hidden}"),
        }
    }
}

impl TryFrom<String> for LayerArg {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<LayerArg> for String {
    fn from(layer: LayerArg) -> Self {
        layer.to_string()
    }
}

/// Binary RBMs of these layers on top of each other, lowest first, on rows of `n_features` values; windows of the lowest layer lie on `image`.
///
/// # Errors
/// When windows do not tile what they lie on, or patches lie on a dense layer or on rows that are no image; the message names `--layers` and
/// the number of the layer.
pub fn stacked(layers: &[LayerArg], n_features: usize, image: Option<ImageShape>) -> Result<Vec<RbmConfig>> {
    let mut rbms: Vec<RbmConfig> = Vec::with_capacity(layers.len());
    for (i, layer) in layers.iter().enumerate() {
        let at = || format!("--layers: layer {}", i + 1);
        let below = rbms.last();
        let rbm = match *layer {
            LayerArg::Dense(n) => RbmConfig::new(below.map_or(n_features, |below| below.n_hidden), n),
            LayerArg::Patch { window, stride, hidden } => {
                let grid = match below {
                    None => {
                        let image = image.with_context(|| format!("{}: rows must be images for patches", at()))?;
                        PatchGrid::of_image(image, window, stride)
                    }
                    Some(below) => below.hidden_grid(window, stride).with_context(|| {
                        format!("{}: patches must lie on patches, got a dense layer below; put dense layers on top", at())
                    })?,
                };
                grid.validate(&at())?;
                RbmConfig::patches(grid, hidden).with_context(at)?
            }
        };
        rbms.push(rbm);
    }
    Ok(rbms)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn layers_are_read_and_written_as_they_are_named() {
        let patch = LayerArg::Patch { window: 24, stride: 8, hidden: 256 };
        let cases = [
            ("500", LayerArg::Dense(500), "dense:500"),
            ("dense:1024", LayerArg::Dense(1024), "dense:1024"),
            ("patch:24/8x256", patch, "patch:24/8x256"),
        ];
        for (text, layer, name) in cases {
            assert_eq!(text.parse(), Ok(layer));
            assert_eq!(layer.to_string(), name);
            assert_eq!(name.parse(), Ok(layer));
            let json = serde_json::to_string(&layer).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<LayerArg>(&json).unwrap(), layer);
        }
    }

    #[test]
    fn what_is_no_layer_is_refused_with_the_forms_of_one() {
        let no_numbers = ["", "x", "-3", "0", "2.5", "dense:", "dense:0", "99999999999"];
        let no_patches =
            ["patch:8", "patch:8/4", "patch:8x4", "patch:8/4x", "patch:0/4x3", "patch:8/0x3", "patch:8/4x0"];
        let others =
            ["patch:8/4x3x2", "patch:8/4/2x3", "patch 8/4x3", "Patch:8/4x3", "conv:8/4x3", "patch:", ":"];
        for text in no_numbers.into_iter().chain(no_patches).chain(others) {
            let err = text.parse::<LayerArg>().unwrap_err();
            assert_eq!(
                err,
                format!(
                    "must be dense:N, N or patch:WINDOW/STRIDExHIDDEN with whole numbers of at least 1, such as patch:8/4x32, got {text}"
                )
            );
            assert!(serde_json::from_str::<LayerArg>(&format!("\"{text}\"")).is_err());
        }
    }
}
