//! The size of patches.
use serde::{Deserialize, Serialize};

/// Lines of a patch and pixels of a line; one number is the side of a square.
///
/// As text it is `8` or `8x12`; files hold a number or `[height, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct PatchSize {
    /// Lines, at least 1.
    pub height: usize,
    /// Pixels in a line, at least 1.
    pub width: usize,
}

impl From<usize> for PatchSize {
    fn from(side: usize) -> Self {
        Self { height: side, width: side }
    }
}

impl From<(usize, usize)> for PatchSize {
    /// Of height and width.
    fn from((height, width): (usize, usize)) -> Self {
        Self { height, width }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Side(usize),
    Shape([usize; 2]),
}

impl From<Stored> for PatchSize {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Side(side) => side.into(),
            Stored::Shape([height, width]) => Self { height, width },
        }
    }
}

impl From<PatchSize> for Stored {
    fn from(PatchSize { height, width }: PatchSize) -> Self {
        if height == width { Self::Side(height) } else { Self::Shape([height, width]) }
    }
}

/// A side, or `HEIGHTxWIDTH`; each at least 1.
impl std::str::FromStr for PatchSize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let side = |text: &str| text.parse::<usize>().ok().filter(|&side| side > 0);
        let size = match text.split_once('x') {
            None => side(text).map(Self::from),
            Some((height, width)) => side(height).zip(side(width)).map(Self::from),
        };
        size.ok_or_else(|| "must be a side or HEIGHTxWIDTH, in pixels, each at least 1".to_owned())
    }
}

/// `8x8`.
impl std::fmt::Display for PatchSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}
