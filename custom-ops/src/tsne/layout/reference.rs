//! A step by plain loops in f64.
use super::step::{FIGURES, LayoutState, LayoutStep};
use crate::tsne::affinities::Affinities;
use candle::{DType, Result, Tensor};

/// [`layout_step_`](super::layout_step_) by plain loops in f64, on the state's device. `room`
/// stays.
///
/// # Errors
/// When candle cannot read the operands.
pub fn layout_step_reference(
    state: &LayoutState,
    affinities: &Affinities,
    forces: &Tensor,
    total: f64,
    step: &LayoutStep,
) -> Result<LayoutState> {
    let read = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (y, mut velocity, mut gains) = (read(&state.layout)?, read(&state.velocity)?, read(&state.gains)?);
    let (forces, rates) = (read(forces)?, state.rates.to_dtype(DType::F64)?.to_vec1::<f64>()?);
    let (offsets, columns) = (affinities.offsets.to_vec1::<u32>()?, affinities.columns.to_vec1::<u32>()?);
    let values = affinities.values.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let (n, d) = state.layout.dims2()?;
    let weights = match &state.weights {
        Some(weights) => weights.to_dtype(DType::F64)?.to_vec1::<f64>()?,
        None => vec![1.; n],
    };
    let alpha = f64::from(step.degrees_of_freedom);
    let (mut next, mut figures) = (y.clone(), vec![0.; FIGURES]);
    for i in 0..n {
        let mut gradient: Vec<f64> = forces[i].iter().map(|f| -4. * f / total).collect();
        for e in offsets[i] as usize..offsets[i + 1] as usize {
            let other = &y[columns[e] as usize];
            let square: f64 = y[i].iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum();
            for k in 0..d {
                let pull = values[e] / weights[i] / (1. + square / alpha);
                gradient[k] += 4. * rates[2] * pull * (y[i][k] - other[k]);
            }
        }
        for k in 0..d {
            figures[0] += weights[i] * gradient[k] * gradient[k];
            let gain = if gradient[k] * velocity[i][k] > 0. { 0.8 * gains[i][k] } else { gains[i][k] + 0.2 };
            gains[i][k] = gain.clamp(step.smallest_gain.into(), step.largest_gain.into());
            velocity[i][k] = rates[1] * velocity[i][k] - rates[0] * gains[i][k] * gradient[k];
        }
        let length = velocity[i].iter().map(|v| v * v).sum::<f64>().sqrt();
        if length > f64::from(step.largest_step) {
            velocity[i].iter_mut().for_each(|v| *v *= f64::from(step.largest_step) / length);
        }
        for k in 0..d {
            next[i][k] += velocity[i][k];
        }
    }
    for k in 0..d {
        let sum: f64 = next.iter().zip(&weights).map(|(y, weight)| weight * y[k]).sum();
        let mean = sum / weights.iter().sum::<f64>();
        next.iter_mut().for_each(|y| y[k] -= mean);
        let most = f64::from(step.largest_coordinate);
        for (i, y) in next.iter_mut().enumerate().filter(|(_, y)| y[k].abs() > most) {
            y[k] = most.copysign(y[k]);
            (velocity[i][k], gains[i][k]) = (0., 1.);
        }
        figures[1 + k] = next.iter().map(|y| y[k]).fold(f64::INFINITY, f64::min);
        figures[4 + k] = next.iter().map(|y| y[k]).fold(f64::NEG_INFINITY, f64::max);
    }
    let device = state.layout.device();
    let write = |rows: Vec<Vec<f64>>| Tensor::new(rows, device)?.to_dtype(DType::F32);
    Ok(LayoutState {
        layout: write(next)?,
        velocity: write(velocity)?,
        gains: write(gains)?,
        room: state.room.clone(),
        figures: Tensor::new(figures, device)?,
        rates: state.rates.clone(),
        work: state.work.clone(),
        weights: state.weights.clone(),
    })
}
