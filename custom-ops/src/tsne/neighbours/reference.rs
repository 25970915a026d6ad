//! Every distance in f64, and a sort of each row.
use super::{Metric, Neighbours};
use candle::{DType, Result, Tensor};

/// [`knn`](super::knn) from all distances in f64.
///
/// # Errors
/// When candle cannot read the rows.
pub fn knn_reference(rows: &Tensor, k: usize, metric: Metric) -> Result<Neighbours> {
    find(rows, rows, k, metric, true)
}

/// [`knn_of`](super::knn_of) from all distances in f64.
///
/// # Errors
/// When candle cannot read the rows.
pub fn knn_of_reference(queries: &Tensor, rows: &Tensor, k: usize, metric: Metric) -> Result<Neighbours> {
    find(queries, rows, k, metric, false)
}

fn find(queries: &Tensor, rows: &Tensor, k: usize, metric: Metric, without_self: bool) -> Result<Neighbours> {
    let [q, x] = [queries, rows].map(|t| t.to_dtype(DType::F64)?.to_vec2::<f64>());
    let (q, x) = (q?, x?);
    let (mut indices, mut distances) = (vec![], vec![]);
    for (i, q) in q.iter().enumerate() {
        let others = x.iter().enumerate().filter(|&(j, _)| !(without_self && i == j));
        let mut all: Vec<(f64, u32)> = others.map(|(j, x)| (distance(q, x, metric), j as u32)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        indices.extend(all[..k].iter().map(|&(_, j)| j));
        distances.extend(all[..k].iter().map(|&(d, _)| d as f32));
    }
    let shape = (q.len(), k);
    Ok(Neighbours {
        indices: Tensor::from_vec(indices, shape, rows.device())?,
        distances: Tensor::from_vec(distances, shape, rows.device())?,
    })
}

fn distance(a: &[f64], b: &[f64], metric: Metric) -> f64 {
    let sum = |of: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(&a, &b)| of(a, b)).sum::<f64>();
    match metric {
        Metric::Euclidean => sum(&|a, b| (a - b) * (a - b)).sqrt(),
        Metric::Cosine => {
            let lengths = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
            if lengths > 0. { 1. - sum(&|a, b| a * b) / lengths } else { 1. }
        }
        Metric::Correlation => {
            let centred = |x: &[f64]| {
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                x.iter().map(|x| x - mean).collect::<Vec<_>>()
            };
            distance(&centred(a), &centred(b), Metric::Cosine)
        }
        Metric::Manhattan => sum(&|a, b| (a - b).abs()),
        Metric::Hamming => sum(&|a, b| f64::from(u8::from(a != b))) / a.len().max(1) as f64,
        Metric::Jaccard => {
            let of = |either: &dyn Fn(bool, bool) -> bool| {
                sum(&|a, b| f64::from(u8::from(either(a != 0., b != 0.))))
            };
            of(&|a, b| a != b) / of(&|a, b| a | b).max(1.)
        }
        Metric::Chebyshev => a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0., f64::max),
    }
}
