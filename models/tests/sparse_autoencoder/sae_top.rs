//! What is known of latents after a pass: against a sort of dense codes and of all cosines.
#![allow(clippy::expect_used)]
use super::{CPU, first_line};
use candle::{DType, Result, Tensor};
use chandlery::sparse_autoencoder::sae::{
    Kind, PairTrainer, Sae, SaeConfig, SaeTrainConfig, SaeTrainer, TopRows,
};
use chandlery::{Encode, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::codes::SparseCodes;
use chandlery_ops::core::normal;

fn model(n_latents: usize, k: usize) -> Result<Sae> {
    Sae::init(SaeConfig::new(6, n_latents, Kind::TopK { k }), Philox::new(4, 0), &CPU)
}

/// Rows many of which are alike, so that values are.
fn rows(n: usize) -> Result<Tensor> {
    let few = normal((40, 6), &CPU, Philox::new(5, 0))?;
    let which: Vec<u32> = (0..n as u64).flat_map(|i| Philox::new(6, i).sample(40, 1)).collect();
    few.index_select(&Tensor::new(which, &CPU)?, 0)
}

#[test]
fn the_rows_with_the_largest_values_are_those_of_a_sort_whatever_the_blocks() -> Result<()> {
    let (sae, rows) = (model(20, 3)?, rows(300)?);
    let codes = sae.encode(&rows)?;
    let dense = codes.to_dense()?.t()?.to_vec2::<f32>()?;
    let part = |start, n| -> Result<SparseCodes> {
        let of = |t: &Tensor| t.narrow(0, start, n);
        let (indices, values) = (of(&codes.indices)?, of(&codes.values)?);
        Ok(SparseCodes { indices, values, count: of(&codes.count)?, n_atoms: codes.n_atoms })
    };
    for n_kept in [0, 1, 5, 400] {
        for block in [1, 7, 300] {
            let mut top = TopRows::new(20, n_kept)?;
            for start in (0..300).step_by(block) {
                top.add(&part(start, block.min(300 - start))?)?;
            }
            assert_eq!(top.n_rows(), 300);
            for (latent, values) in dense.iter().enumerate() {
                let mut want: Vec<(u32, f32)> =
                    (0..).zip(values.iter().copied()).filter(|(_, v)| *v > 0.).collect();
                assert_eq!(top.uses()[latent], want.len() as u64);
                assert_eq!(top.densities()[latent], want.len() as f64 / 300.);
                want.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                want.truncate(n_kept);
                assert_eq!(top.of(latent).collect::<Vec<_>>(), want, "latent {latent}, {n_kept} by {block}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_kept_comes_back_from_its_file() -> Result<()> {
    let (sae, rows) = (model(20, 3)?, rows(100)?);
    let mut top = TopRows::new(20, 4)?;
    top.add(&sae.encode(&rows)?)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("top.safetensors");
    top.save(&path)?;
    let (tensors, notes) = chandlery::io::load_tensors(&path, &CPU)?;
    assert_eq!(notes.get("n_rows").map(String::as_str), Some("100"));
    let (indices, values) = (tensors["indices"].to_vec2::<u32>()?, tensors["values"].to_vec2::<f32>()?);
    let counts = tensors["count"].to_vec1::<u32>()?;
    let uses = tensors["uses"].to_vec1::<i64>()?;
    for latent in 0..20 {
        let pairs = indices[latent].iter().copied().zip(values[latent].iter().copied());
        assert_eq!(
            pairs.take(counts[latent] as usize).collect::<Vec<_>>(),
            top.of(latent).collect::<Vec<_>>()
        );
        assert_eq!(uses[latent] as u64, top.uses()[latent]);
    }
    let other = model(7, 3)?.encode(&rows)?;
    let said = first_line(top.add(&other).expect_err("codes of another model"));
    assert_eq!(said, "TopRows::add: codes must be of 20 latents, got 7");
    Ok(())
}

#[test]
fn neighbours_have_the_largest_cosines_of_decoder_rows() -> Result<()> {
    let sae = model(30, 3)?;
    let d = sae.decoder().to_dtype(DType::F64)?;
    let unit = d.broadcast_div(&d.sqr()?.sum_keepdim(1)?.sqrt()?)?;
    let cosines = unit.matmul(&unit.t()?)?.to_vec2::<f64>()?;
    let latents = [29u32, 0, 7];
    let found = sae.decoder_neighbours(&latents, 5)?;
    for (&latent, found) in latents.iter().zip(&found) {
        let mut others: Vec<usize> = (0..30).filter(|&j| j != latent as usize).collect();
        let own = &cosines[latent as usize];
        others.sort_by(|&a, &b| own[b].total_cmp(&own[a]));
        assert_eq!(
            found.iter().map(|(j, _)| *j as usize).collect::<Vec<_>>(),
            others[..5],
            "latent {latent}"
        );
        assert!(found.iter().all(|&(j, cosine)| (f64::from(cosine) - own[j as usize]).abs() < 1e-5));
    }
    let said = first_line(sae.decoder_neighbours(&[30], 5).expect_err("no such latent"));
    assert_eq!(said, "Sae::decoder_neighbours: latents must be below 30, got 30");
    Ok(())
}

#[test]
fn a_transcoder_steps_from_rows_with_their_targets_behind_them() -> Result<()> {
    let config = SaeConfig { skip: true, ..SaeConfig::transcoder(6, 20, 2, Kind::TopK { k: 3 }) };
    let sae = Sae::init(config, Philox::new(4, 0), &CPU)?;
    let train = SaeTrainConfig { batch: 50, learning_rate: Some(0.01), ..SaeTrainConfig::default() };
    let new = || SaeTrainer::new(&sae, train.clone(), Philox::new(4, 1));
    let (mut pairs, mut apart) = (PairTrainer::from(new()?), new()?);
    for i in 0..4 {
        let both = normal((50, 8), &CPU, Philox::new(9, i))?;
        pairs.step(&both, None)?;
        apart.step_to(&both.narrow(1, 0, 6)?, &both.narrow(1, 6, 2)?)?;
    }
    let weights = |sae: Sae| sae.decoder().to_vec2::<f32>();
    assert_eq!(weights(pairs.model()?)?, weights(apart.model()?)?);
    assert_eq!(pairs.metrics()?, apart.metrics()?);
    let said =
        first_line(pairs.step(&normal((50, 7), &CPU, Philox::new(9, 0))?, None).expect_err("too narrow"));
    assert_eq!(said, "PairTrainer::step: rows must have shape [batch, 8], got [50, 7]");
    Ok(())
}
