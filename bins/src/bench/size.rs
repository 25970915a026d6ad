//! Sizes of networks of two layers, as options name them.
use std::str::FromStr;

/// Visible and hidden units, written `576x1024`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub n_visible: usize,
    pub n_hidden: usize,
}

impl Size {
    /// Visible and hidden units.
    pub(super) fn units(&self) -> (usize, usize) {
        (self.n_visible, self.n_hidden)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |n: &str| n.parse().ok().filter(|n| (1..=1_000_000).contains(n));
        text.split_once('x')
            .and_then(|(v, h)| Some(Self { n_visible: parse(v)?, n_hidden: parse(h)? }))
            .ok_or_else(|| format!("must be VISIBLExHIDDEN, such as 576x1024, got {text}"))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.n_visible, self.n_hidden)
    }
}
