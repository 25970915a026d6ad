//! How much memory the process holds, as Linux counts it.
use serde::Serialize;
use std::fs;

/// Bytes of the resident set by kind; none where the system does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Memory {
    /// The greatest resident set, all kinds together.
    pub peak_bytes: Option<usize>,
    /// What the program itself holds: heap and stacks.
    pub anonymous_bytes: Option<usize>,
    /// Pages of mapped files, which the system takes back when memory is short.
    pub mapped_bytes: Option<usize>,
    /// Memory shared with other processes or with drivers, and pages of files that lie in memory.
    pub shared_bytes: Option<usize>,
}

impl Memory {
    /// Reads the text of `/proc/PID/status`.
    fn of_status(text: &str) -> Self {
        let bytes = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
        };
        Self {
            peak_bytes: bytes("VmHWM"),
            anonymous_bytes: bytes("RssAnon"),
            mapped_bytes: bytes("RssFile"),
            shared_bytes: bytes("RssShmem"),
        }
    }

    /// The larger of each.
    fn max(self, other: Self) -> Self {
        Self {
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
            anonymous_bytes: self.anonymous_bytes.max(other.anonymous_bytes),
            mapped_bytes: self.mapped_bytes.max(other.mapped_bytes),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
        }
    }
}

/// A stretch of the program whose memory is watched. The system keeps the peak of the resident set;
/// the kinds are those of the moments at which [`look`](Self::look) was called.
pub(super) struct Watch {
    /// Whether the peak of what was before has been forgotten.
    fresh_peak: bool,
    greatest: Memory,
}

impl Watch {
    /// Begins now.
    pub(super) fn begin() -> Self {
        // 5: set the peak to the present size.
        let fresh_peak = fs::write("/proc/self/clear_refs", "5").is_ok();
        Self { fresh_peak, greatest: Memory::default() }
    }

    /// Looks at what the process holds at this moment.
    pub(super) fn look(&mut self) {
        let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
        let now = Memory::of_status(&status);
        let peak_bytes = now.peak_bytes.filter(|_| self.fresh_peak);
        self.greatest = self.greatest.max(Memory { peak_bytes, ..now });
    }

    /// The most that was seen.
    pub(super) fn greatest(&self) -> Memory {
        self.greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_memory_are_read_from_the_words_of_the_kernel() {
        let status =
            "Name:\tbench\nVmHWM:\t  900 kB\nVmRSS:\t  800 kB\nRssAnon:\t      70 kB\nRssFile:\t 5 kB\n";
        let memory = Memory::of_status(status);
        let want = Memory {
            peak_bytes: Some(900 << 10),
            anonymous_bytes: Some(70 << 10),
            mapped_bytes: Some(5 << 10),
            shared_bytes: None,
        };
        assert_eq!(memory, want);
        assert_eq!(Memory::of_status("VmHWM: many kB\nRssAnon"), Memory::default());
        let later = Memory { peak_bytes: Some(1), shared_bytes: Some(7), ..Memory::default() };
        assert_eq!(memory.max(later), Memory { shared_bytes: Some(7), ..want });
    }
}
