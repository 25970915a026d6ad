//! A product by one of two kinds of kernels.
use super::operands as warps;
use super::warpgroup_operands as warpgroups;
use candle::{Result, Tensor};

/// The product by one of the two kernels.
#[derive(Debug, Clone, Copy)]
pub(super) enum Product {
    Warps(warps::Product),
    Warpgroups(warpgroups::Product),
}

impl Product {
    /// That of `a` and `b` of as many parts each, the latter row-major if `transposed`; none where the
    /// ops go one after the other.
    pub(super) fn of_parts(
        planes: &Tensor,
        a: &Tensor,
        b: &Tensor,
        transposed: bool,
    ) -> Result<Option<Self>> {
        let takes = |[of_a, of_b]: [usize; 2], row_major| of_a == of_b && row_major == transposed;
        if let Some(product) = warpgroups::Product::of(planes, planes.dtype(), a, b, takes)? {
            return Ok(Some(Self::Warpgroups(product)));
        }
        let product = warps::Product::of(planes, a, b)?;
        Ok(product
            .filter(|product| (product.a_parts, product.transposed) == (2, transposed))
            .map(Self::Warps))
    }

    /// Rows and columns of the result.
    pub(super) fn sizes(&self) -> (usize, usize) {
        match self {
            Self::Warps(product) => (product.m, product.n),
            Self::Warpgroups(product) => (product.m, product.n),
        }
    }

    /// Entries of the result.
    pub(super) fn entries(&self) -> usize {
        let (m, n) = self.sizes();
        m * n
    }
}
