//! Every pair in f64.
use candle::{DType, Result, Tensor};

/// Forces, f64 `[n, n_dims]`, and the total of a layout of any type and number of dimensions.
///
/// # Errors
/// When candle cannot read `layout`.
pub fn repulsion_reference(layout: &Tensor, degrees_of_freedom: f64) -> Result<(Tensor, f64)> {
    let y = layout.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let (mut forces, mut total) = (vec![], 0.);
    for (i, a) in y.iter().enumerate() {
        let mut force = vec![0.; a.len()];
        for b in y.iter().enumerate().filter(|&(j, _)| j != i).map(|(_, b)| b) {
            let square: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
            let near = 1. / (1. + square / degrees_of_freedom);
            let w = near.powf(degrees_of_freedom);
            total += w;
            force.iter_mut().zip(a.iter().zip(b)).for_each(|(f, (a, b))| *f += w * near * (a - b));
        }
        forces.extend(force);
    }
    Ok((Tensor::from_vec(forces, layout.dims(), layout.device())?, total))
}
