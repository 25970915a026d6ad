//! What can go wrong with a request or a download.
use std::path::PathBuf;
use std::time::Duration;

/// What went wrong.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server answered with an error.
    Status {
        status: u16,
        /// The hub's word for it, such as `RevisionNotFound`.
        code: Option<String>,
        /// How long the server wants to be left alone.
        wait: Option<Duration>,
    },
    /// Nobody listens.
    Unreachable,
    /// The connection broke before the answer was whole.
    Cut(String),
    /// A download ended early; the bytes that came and those that should have.
    Short(u64, Option<u64>),
    /// What the server says makes no sense.
    Wrong(String),
    /// The bytes are not those that the hub has.
    Damaged(String),
    /// The token cannot be sent.
    Token,
    /// The cache cannot be written.
    Io(PathBuf, std::io::Error),
}

impl Failure {
    /// Whether the hub was not reached at all, or was, but is out of order.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable | Self::Cut(_) | Self::Status { status: 500.., .. })
    }
}
