//! Equal rows as one point: on the CPU, and what a GPU says.
use super::{CPU, config, rows};
use candle::{DType, Device, Result, Tensor};
use chandlery::tsne::{Method, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox, Trainer};
use chandlery_ops::tsne::{
    LayoutState, LayoutStep, Repulsion, RepulsionMethod, layout_centre_, perplexity_search_of_counts,
    symmetrize, symmetrize_reference,
};
use chandlery_tests::{assert_close, devices};

fn refused<T>(result: Result<T>) -> String {
    result.err().map_or_else(String::new, |e| e.to_string())
}

#[test]
fn equal_rows_are_one_point_on_the_cpu_and_refused_on_a_gpu() -> Result<()> {
    // A fifth of them comes again.
    let rows = rows(250, 6, 3)?;
    let unique = TsneConfig { unique: true, ..config(Method::Exact, 2) };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let run = TsneTrainer::new(unique.clone(), Philox::new(94, 0), &rows)?;
    assert_eq!(run.n_points(), 200);
    run.save(&path, &serde_json::Value::Null)?;
    let want = "unique is for one process on the CPU, got a GPU";
    for device in devices()? {
        let rows = rows.to_device(&device)?;
        let said = refused(TsneTrainer::new(unique.clone(), Philox::new(94, 0), &rows));
        let resumed = refused(TsneTrainer::load(&path, &rows, &device));
        let is_refused = [&said, &resumed].map(|said| said.contains(want));
        assert_eq!(is_refused, [!device.is_cpu(); 2], "{said} {resumed}");
    }
    Ok(())
}

/// What ops with weights say on a device.
fn said_of_weights(device: &Device) -> Result<[String; 3]> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
    let (layout, ones) = (zeros(&[5, 2])?, Tensor::ones(5, DType::F32, device)?);
    let total = Tensor::zeros(1, DType::F64, device)?;
    let exact = Repulsion::new(RepulsionMethod::Exact, 5, 2, 1., device)?;
    let pushed = exact.repulsion_of_(&zeros(&[5, 2])?, &total, &layout, Some(&ones));
    let mut state = LayoutState::new(&layout)?;
    state.weights = Some(ones);
    let moved = layout_centre_(&state, &zeros(&[5, 2])?, &LayoutStep::default());
    let counts = Tensor::ones((5, 3), DType::F32, device)?;
    let searched = perplexity_search_of_counts(&zeros(&[5, 3])?, &counts, &[2.]);
    Ok([refused(pushed), refused(moved), refused(searched)])
}

#[test]
fn weights_are_for_the_cpu_and_refused_on_a_gpu() -> Result<()> {
    for device in devices()? {
        let said = said_of_weights(&device)?;
        assert!(
            said.iter().all(|said| said.contains("on the CPU, got a GPU") != device.is_cpu()),
            "{said:?}"
        );
    }
    Ok(())
}

#[test]
fn rows_that_are_their_own_neighbours_have_the_affinities_of_the_reference() -> Result<()> {
    let (n, k) = (300u32, 9u32);
    // Itself and those that follow it, by turns.
    let to: Vec<u32> = (0..n).flat_map(|i| (0..k).map(move |e| (i + e * (1 + i % 3)) % n)).collect();
    let indices = Tensor::from_vec(to, (300, 9), &CPU)?;
    let p = chandlery_ops::core::uniform((300, 9), &CPU, Philox::new(94, 1))?;
    let want = symmetrize_reference(&indices, &p)?;
    for device in devices()? {
        let got = symmetrize(&indices.to_device(&device)?, &p.to_device(&device)?)?;
        assert_eq!(got.offsets.to_vec1::<u32>()?, want.offsets.to_vec1::<u32>()?);
        assert_eq!(got.columns.to_vec1::<u32>()?, want.columns.to_vec1::<u32>()?);
        assert_close("values", &got.values.to_device(&CPU)?, &want.values, 1e-5, 0.)?;
    }
    Ok(())
}
