use super::Paper;
use anyhow::Result;

pub(super) const SECTIONS: &[&str] = &[];

pub(super) fn run(_paper: &mut Paper) -> Result<()> {
    Ok(())
}
