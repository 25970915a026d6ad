//! The affinities by plain loops in f64.
use super::Affinities;
use candle::{DType, Result, Tensor};

/// [`perplexity_search`](super::perplexity_search) by bisection to the last bit.
///
/// # Errors
/// When candle cannot read `distances`.
pub fn perplexity_search_reference(distances: &Tensor, perplexities: &[f64]) -> Result<Tensor> {
    let rows = distances.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let mut out = Vec::new();
    for row in &rows {
        let least = row.iter().map(|d| d * d).fold(f64::INFINITY, f64::min);
        let mut mean = vec![0.; row.len()];
        for perplexity in perplexities {
            let affinities = |beta: f64| {
                let w: Vec<f64> = row.iter().map(|d| (-beta * (d * d - least)).exp()).collect();
                let sum: f64 = w.iter().sum();
                w.iter().map(|w| w / sum).collect::<Vec<_>>()
            };
            let entropy = |p: &[f64]| -p.iter().filter(|&&p| p > 0.).map(|p| p * p.ln()).sum::<f64>();
            let (mut low, mut high) = (0f64, 1f64);
            while entropy(&affinities(high)) > perplexity.ln() && high < 1e300 {
                high *= 2.;
            }
            for _ in 0..2000 {
                let middle = f64::midpoint(low, high);
                if entropy(&affinities(middle)) > perplexity.ln() { low = middle } else { high = middle }
            }
            let equal = row.iter().all(|d| d * d == least);
            let p = affinities(if equal { 1. } else { high });
            mean.iter_mut().zip(p).for_each(|(mean, p)| *mean += p / perplexities.len() as f64);
        }
        out.extend(mean.iter().map(|&p| p as f32));
    }
    Tensor::from_vec(out, distances.dims(), distances.device())
}

/// [`symmetrize`](super::symmetrize) through a dense matrix.
///
/// # Errors
/// When candle cannot read the operands.
pub fn symmetrize_reference(indices: &Tensor, p: &Tensor) -> Result<Affinities> {
    let (to, p) = (indices.to_vec2::<u32>()?, p.to_dtype(DType::F64)?.to_vec2::<f64>()?);
    let n = to.len();
    let mut dense = vec![None; n * n];
    for (i, (to, p)) in to.iter().zip(&p).enumerate() {
        for (&j, p) in to.iter().zip(p) {
            for at in [i * n + j as usize, j as usize * n + i] {
                *dense[at].get_or_insert(0.) += p / (2. * n as f64);
            }
        }
    }
    let (mut offsets, mut columns, mut values) = (vec![0u32], vec![], vec![]);
    for row in dense.chunks(n.max(1)) {
        for (j, p) in row.iter().enumerate() {
            if let Some(p) = p {
                columns.push(j as u32);
                values.push(*p as f32);
            }
        }
        offsets.push(columns.len() as u32);
    }
    let device = indices.device();
    Ok(Affinities {
        offsets: Tensor::new(offsets, device)?,
        columns: Tensor::new(columns, device)?,
        values: Tensor::new(values, device)?,
    })
}
