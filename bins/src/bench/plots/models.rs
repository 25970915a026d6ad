//! What is drawn of each model's section. Lines of other libraries are dashed; a colour is a
//! precision or a kind.
use super::{curve, panel};
use crate::bench::page::{Row, Table, number, product};
use anyhow::Result;
use chandlery::pictures::curves::Panel;

/// The size in the first cell, in millions.
fn millions(row: Row<'_>) -> Option<f64> {
    Some(product(row.name())? / 1e6)
}

/// Contrastive divergence: seconds for a million examples by weights.
pub(super) fn rbm(page: &str) -> Result<Vec<Panel>> {
    let table = Table::read(page, "Restricted Boltzmann machines", "visible × hidden")?;
    let of = |name: &str| curve(name, &table, |row| Some((millions(row)?, row.number(name)?)));
    let mut curves = vec![];
    for (colour, precision) in ["f32", "TF32", "bf16"].iter().enumerate() {
        curves.push(of(&format!("PyTorch {precision}")).map(|curve| curve.coloured(colour).dashed()));
        curves.push(of(&format!("ours {precision}")).map(|curve| curve.coloured(colour)));
    }
    let title = "CD-1 on one H200: a million examples";
    Ok(vec![panel(title, "weights, millions", "seconds", curves)?])
}

/// Steps of the grid at one size: microseconds by rows of a minibatch.
pub(super) fn minibatches(page: &str, size: &str) -> Result<Vec<Panel>> {
    let table = Table::read(page, "Larger minibatches", "CD bf16")?;
    let panel = |family: &str| {
        let mut curves = vec![];
        for (colour, precision) in ["f32", "TF32", "bf16"].iter().enumerate() {
            // Ours and PyTorch's stand in one cell.
            for (place, whose) in ["ours", "PyTorch"].iter().enumerate() {
                let point = |row: Row<'_>| {
                    let cell = row.cell(&format!("{family} {precision}"));
                    let us = number(cell.split('/').nth(place)?)?;
                    (row.name() == size).then_some((row.number("rows")?, us))
                };
                let line = curve(&format!("{whose} {precision}"), &table, point)?.coloured(colour);
                curves.push(Ok(if place == 0 { line } else { line.dashed() }));
            }
        }
        panel(&format!("{size} on one H200: {family}"), "rows of a minibatch", "microseconds a step", curves)
    };
    Ok(vec![panel("CD")?, panel("autoencoder")?])
}

/// Sparse codes: microseconds a signal by atoms on a CPU, milliseconds by signals × atoms on a GPU.
pub(super) fn pursuits(page: &str) -> Result<Vec<Panel>> {
    let section = "Greedy pursuits";
    let (cpu, gpu) = (Table::read(page, section, "atoms")?, Table::read(page, section, "signals × atoms")?);
    let of =
        |name: &str, label: &str| curve(label, &cpu, |row| Some((row.number("atoms")?, row.number(name)?)));
    let on_cpu = [
        of("scikit-learn", "scikit-learn").map(|curve| curve.dashed()),
        of("dictlearn, numba", "dictlearn").map(|curve| curve.dashed()),
        of("SPAMS `omp`, which computes OLS", "SPAMS, OLS").map(|curve| curve.dashed()),
        of("ours OLS", "ours, OLS"),
        of("ours Batch-OMP", "ours, Batch-OMP"),
    ];
    let of = |name: &str, label: &str| curve(label, &gpu, |row| Some((millions(row)?, row.number(name)?)));
    let on_gpu = [
        of("PyTorch Batch-OMP", "PyTorch").map(|curve| curve.dashed()),
        of("ours OLS", "ours, OLS").map(|curve| curve.coloured(3)),
        of("ours Batch-OMP", "ours, Batch-OMP").map(|curve| curve.coloured(4)),
        of("floor", "floor").map(|curve| curve.coloured(6)),
    ];
    Ok(vec![
        panel("8 atoms per code on two CPU cores", "atoms", "microseconds a signal", on_cpu)?,
        panel("8 atoms per code on one H200", "signals × atoms, millions", "milliseconds", on_gpu)?,
    ])
}

/// The denoising autoencoder: seconds of an epoch by rows of a minibatch.
pub(super) fn dae(page: &str) -> Result<Vec<Panel>> {
    let table = Table::read(page, "Denoising autoencoders", "rows of a minibatch")?.turned();
    let of =
        |name: &str, label: &str| curve(label, &table, |row| Some((number(row.name())?, row.number(name)?)));
    let curves = [
        of("PyTorch, CUDA graph, f32", "PyTorch f32").map(|curve| curve.dashed()),
        of("PyTorch, CUDA graph, TF32", "PyTorch TF32").map(|curve| curve.dashed()),
        of("ours, f32", "ours f32").map(|curve| curve.coloured(0)),
    ];
    let title = "Autoencoder 784-500 on one H200: an epoch";
    Ok(vec![panel(title, "rows of a minibatch", "seconds", curves)?])
}

/// The sparse autoencoder: seconds of a pass by weights.
pub(super) fn sparse_autoencoder(page: &str) -> Result<Vec<Panel>> {
    let table = Table::read(page, "Sparse autoencoders", "inputs × hidden")?.turned();
    let of = |name: &str, label: &str| curve(label, &table, |row| Some((millions(row)?, row.number(name)?)));
    let curves = [
        of("ours f32, s", "ours f32"),
        of("ours TF32, s", "ours TF32"),
        of("Klaus and Welles 2014, CUDA, s", "the paper, 2014").map(|curve| curve.coloured(6).dashed()),
    ];
    let title = "Cost and gradient of 10,000 rows on one H200";
    Ok(vec![panel(title, "inputs × hidden, millions", "seconds", curves)?])
}

/// Sparse autoencoders with latents: rows a second by size.
pub(super) fn latents(page: &str) -> Result<Vec<Panel>> {
    let table = Table::read(page, "Sparse autoencoders with latents", "kind")?;
    let mut curves = vec![];
    for (colour, kind) in ["top-k", "batch-top-k", "jump-relu", "matryoshka"].iter().enumerate() {
        let of = |whose: &str, rate: fn(Row<'_>) -> Option<f64>| {
            let point = |row: Row<'_>| (row.cell("kind") == *kind).then_some((millions(row)?, rate(row)?));
            Ok(curve(&format!("{whose}{kind}"), &table, point)?.coloured(colour))
        };
        curves.push(of("", |row| row.number("rows/s, M")));
        let peer = of("PyTorch ", |row| Some(row.number("rows/s, M")? / row.number("ratio")?));
        curves.push(peer.map(|curve| curve.dashed()));
    }
    let title = "Training in bf16 on one H100: rows a second";
    Ok(vec![panel(title, "inputs × latents, millions", "million rows a second", curves)?])
}

/// Sparse coding: seconds for 1,000 signals by the share of nonzero activations.
pub(super) fn sparse_coding(page: &str) -> Result<Vec<Panel>> {
    let table = Table::read(page, "Sparse coding", "nonzero")?;
    let of = |name: &str, label: &str| {
        curve(label, &table, |row| Some((row.number("nonzero")?, row.number(name)?)))
    };
    let curves = [
        of("SPAMS `lasso` f32, the same, s (largest gap)", "SPAMS").map(|curve| curve.dashed()),
        of("two CPU cores, 1,000 signals, s", "ours"),
    ];
    let title = "1,000 signals on two CPU cores";
    Ok(vec![panel(title, "nonzero activations, per cent", "seconds", curves)?])
}
