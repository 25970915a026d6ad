//! Fitted numbers in the types that rows meet.
use crate::Result;
use candle::DType;
use std::sync::{Arc, OnceLock};

/// The same numbers in f32, and in f64 once rows are; on one device.
#[derive(Debug, Clone)]
pub(super) struct Applied<T> {
    single: T,
    double: Arc<OnceLock<T>>,
}

impl<T> Applied<T> {
    pub(super) fn new(single: T) -> Self {
        Self { single, double: Arc::default() }
    }

    pub(super) fn single(&self) -> &T {
        &self.single
    }

    /// Those for rows of `dtype`, f32 or f64, which `double` makes where nobody needed them before.
    pub(super) fn of(&self, dtype: DType, double: impl FnOnce() -> Result<T>) -> Result<&T> {
        match (dtype, self.double.get()) {
            (DType::F64, Some(made)) => Ok(made),
            (DType::F64, None) => {
                let made = double()?;
                Ok(self.double.get_or_init(|| made))
            }
            _ => Ok(&self.single),
        }
    }
}
