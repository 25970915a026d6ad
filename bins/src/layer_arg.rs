//! A layer of a network, as the option `--layers` names it.
use anyhow::{Context, Result, bail};
use chandlery::conv_rbm::{ConvGrid, Padding};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::RbmConfig;
use chandlery_datasets::ImageShape;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A layer: `dense:N`, a bare `N`, `patch:WINDOW/STRIDExHIDDEN` or
/// `conv:SIZExFILTERS[/strideN][/same][/poolN]`. As text, which run folders hold too, it is what
/// [`FromStr`] reads.
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
    /// Filters at every place of the layer below.
    Conv {
        /// Side of a filter, in places.
        size: usize,
        /// Filters: maps of hidden units.
        filters: usize,
        /// Distance of neighbouring places of a filter.
        stride: usize,
        /// What happens at the border.
        padding: Padding,
        /// Side of the blocks of places that are pooled.
        pool: usize,
    },
}

/// What is said of a text that is no layer, before it.
const FORMS: &str = "must be dense:N, N, patch:WINDOW/STRIDExHIDDEN or conv:SIZExFILTERS[/strideN][/same][/poolN] with whole numbers of at least 1, \
                     such as patch:8/4x32 or conv:12x24/pool2";

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
        let conv = |text: &str| {
            let mut parts = text.split('/');
            let (size, filters) = parts.next()?.split_once('x')?;
            let mut rest: Vec<_> = parts.collect();
            let apart = rest.first().and_then(|part| part.strip_prefix("stride"));
            let stride = apart.map_or(Some(1), number)?;
            rest.drain(..usize::from(apart.is_some()));
            let same = rest.first() == Some(&"same");
            rest.drain(..usize::from(same));
            let pool = match rest[..] {
                [] => 1,
                [pool] => number(pool.strip_prefix("pool")?)?,
                _ => return None,
            };
            let padding = if same { Padding::Same } else { Padding::Valid };
            Some(Self::Conv { size: number(size)?, filters: number(filters)?, stride, padding, pool })
        };
        let layer = match text.split_once(':') {
            None => number(text).map(Self::Dense),
            Some(("dense", n)) => number(n).map(Self::Dense),
            Some(("patch", text)) => patch(text),
            Some(("conv", text)) => conv(text),
            Some(_) => None,
        };
        layer.ok_or_else(|| format!("{FORMS}, got {text}"))
    }
}

/// The same text as [`FromStr`] reads.
impl fmt::Display for LayerArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(n) => write!(f, "dense:{n}"),
            Self::Patch { window, stride, hidden } => write!(f, "patch:{window}/{stride}x{hidden}"),
            Self::Conv { size, filters, stride, padding, pool } => {
                write!(f, "conv:{size}x{filters}")?;
                if *stride > 1 {
                    write!(f, "/stride{stride}")?;
                }
                if *padding == Padding::Same {
                    f.write_str("/same")?;
                }
                match pool {
                    1 => Ok(()),
                    _ => write!(f, "/pool{pool}"),
                }
            }
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

impl LayerArg {
    /// Whether it lies on places: those of an image, or of a layer that lies on places itself.
    pub fn lies_on_places(self) -> bool {
        !matches!(self, Self::Dense(_))
    }
}

/// Binary RBMs of these layers on top of each other, lowest first, on rows of `n_features` values;
/// windows and filters of the lowest layer lie on `image`.
///
/// # Errors
/// When windows do not tile what they lie on, blocks of pooled units do not tile their maps, or
/// patches or filters lie on a dense layer or on rows that are no image; the message names
/// `--layers` and the number of the layer.
pub fn stacked(layers: &[LayerArg], n_features: usize, image: Option<ImageShape>) -> Result<Vec<RbmConfig>> {
    let mut rbms: Vec<RbmConfig> = Vec::with_capacity(layers.len());
    for (i, layer) in layers.iter().enumerate() {
        let at = || format!("--layers: layer {}", i + 1);
        let below = rbms.last();
        if layer.lies_on_places() {
            match below {
                None if image.is_none() => bail!("{}: rows must be images for {layer}", at()),
                Some(below) if below.hidden_places().is_none() => {
                    bail!("{}: {layer} must not lie on a dense layer; put dense layers on top", at())
                }
                _ => {}
            }
        }
        let rbm = match *layer {
            LayerArg::Dense(n) => RbmConfig::new(below.map_or(n_features, |below| below.n_hidden), n),
            LayerArg::Patch { window, stride, hidden } => {
                let on_image = || image.map(|image| PatchGrid::of_image(image, window, stride));
                let grid = below.map_or_else(on_image, |below| below.hidden_grid(window, stride));
                let grid = grid.with_context(at)?;
                grid.validate(&at())?;
                RbmConfig::patches(grid, hidden).with_context(at)?
            }
            LayerArg::Conv { size, filters, stride, padding, pool } => {
                let on_image = || image.map(|image| ConvGrid::of_image(image, size, filters));
                let grid = below.map_or_else(on_image, |below| below.hidden_conv_grid(size, filters));
                let grid = ConvGrid { stride, padding, pool, ..grid.with_context(at)? };
                grid.validate(&at())?;
                RbmConfig::convolution(grid).with_context(at)?
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
        let conv = |padding, pool| LayerArg::Conv { size: 12, filters: 24, stride: 1, padding, pool };
        let apart = LayerArg::Conv { size: 12, filters: 24, stride: 2, padding: Padding::Valid, pool: 3 };
        let cases = [
            ("500", LayerArg::Dense(500), "dense:500"),
            ("dense:1024", LayerArg::Dense(1024), "dense:1024"),
            ("patch:24/8x256", patch, "patch:24/8x256"),
            ("conv:12x24", conv(Padding::Valid, 1), "conv:12x24"),
            ("conv:12x24/pool1", conv(Padding::Valid, 1), "conv:12x24"),
            ("conv:12x24/pool2", conv(Padding::Valid, 2), "conv:12x24/pool2"),
            ("conv:12x24/stride1", conv(Padding::Valid, 1), "conv:12x24"),
            ("conv:12x24/stride2/pool3", apart, "conv:12x24/stride2/pool3"),
            ("conv:12x24/same", conv(Padding::Same, 1), "conv:12x24/same"),
            ("conv:12x24/same/pool3", conv(Padding::Same, 3), "conv:12x24/same/pool3"),
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
        let others = ["patch:8/4x3x2", "patch:8/4/2x3", "patch 8/4x3", "Patch:8/4x3", "patch:", ":"];
        let no_filters = [
            "conv:",
            "conv:8",
            "conv:8/4x3",
            "conv:8x",
            "conv:8x0",
            "conv:8x3/pool",
            "conv:8x3/pool0",
            "conv:8x3/2",
            "conv:8x3/pool2/same",
            "conv:8x3/valid",
            "conv:8x3/same/same",
            "conv:8x3/stride",
            "conv:8x3/stride0",
            "conv:8x3/same/stride2",
        ];
        for text in no_numbers.into_iter().chain(no_patches).chain(others).chain(no_filters) {
            let err = text.parse::<LayerArg>().unwrap_err();
            assert_eq!(err, format!("{FORMS}, got {text}"));
            assert!(serde_json::from_str::<LayerArg>(&format!("\"{text}\"")).is_err());
        }
    }
}
