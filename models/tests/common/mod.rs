//! What the tests of this folder share: the bits of all weights, to compare networks by.
use candle::{Result, Tensor};
use std::borrow::Borrow;

/// The bits of named `f32` tensors, one after another.
pub fn bits<N, T: Borrow<Tensor>>(tensors: impl IntoIterator<Item = (N, T)>) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for (_, t) in tensors {
        all.extend(t.borrow().flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits));
    }
    Ok(all)
}
