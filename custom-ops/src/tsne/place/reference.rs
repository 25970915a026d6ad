//! Every pair in f64.
use super::PlaceSteps;
use candle::{DType, Result, Tensor};

/// [`place_points`](super::place_points) with exact sums by plain loops in f64: f64 `[m, n_dims]`.
///
/// # Errors
/// When candle cannot read the operands.
pub fn place_points_reference(
    neighbours: &Tensor,
    p: &Tensor,
    layout: &Tensor,
    steps: &PlaceSteps,
) -> Result<Tensor> {
    let y = layout.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let (neighbours, p) = (neighbours.to_vec2::<u32>()?, p.to_dtype(DType::F64)?.to_vec2::<f64>()?);
    let [alpha, exaggeration] = [steps.degrees_of_freedom, steps.exaggeration].map(f64::from);
    let [rate, momentum, largest] =
        [steps.learning_rate, steps.momentum, steps.largest_gradient].map(f64::from);
    let d = layout.dim(1)?;
    let apart = |a: &[f64], b: &[f64]| {
        let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        let near = 1. / (1. + difference.iter().map(|d| d * d).sum::<f64>() / alpha);
        (difference, near)
    };
    let mut points = vec![];
    for (neighbours, p) in neighbours.iter().zip(&p) {
        let near: Vec<(&[f64], f64)> =
            neighbours.iter().map(|&j| &y[j as usize][..]).zip(p.clone()).collect();
        let median = |k: usize| {
            let half = p.iter().sum::<f64>() / 2.;
            let weight = |is: &dyn Fn(f64) -> bool| -> f64 {
                near.iter().filter(|(y, _)| is(y[k])).map(|(_, p)| p).sum()
            };
            // Sums of the same numbers in another order may differ in the last bits.
            let slack = 1e-9 * half;
            let medians = near
                .iter()
                .map(|(y, _)| y[k])
                .filter(|&x| weight(&|y| y < x) <= half + slack && weight(&|y| y > x) <= half + slack);
            let (low, high) =
                medians.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
            f64::midpoint(low, high)
        };
        let mut point: Vec<f64> = (0..d).map(median).collect();
        let mut velocity = vec![0.; d];
        for _ in 0..steps.iterations {
            let (mut gradient, mut force, mut total) = (vec![0.; d], vec![0.; d], 0.);
            for (y, p) in &near {
                let (difference, near) = apart(&point, y);
                for k in 0..d {
                    gradient[k] += 4. * exaggeration * p * near * difference[k];
                }
            }
            for y in &y {
                let (difference, near) = apart(&point, y);
                total += near.powf(alpha);
                for k in 0..d {
                    force[k] += near.powf(alpha + 1.) * difference[k];
                }
            }
            for k in 0..d {
                gradient[k] -= 4. * force[k] / total;
            }
            let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            for k in 0..d {
                velocity[k] = momentum * velocity[k] - rate * gradient[k] * (largest / norm).min(1.);
                point[k] += velocity[k];
            }
        }
        points.push(point);
    }
    Tensor::new(points, layout.device())
}
