//! What needs no training: chains of annealing, and codes of rows.
use super::{CPU, close, each};
use candle::{Result, Tensor};
use chandlery::dictionary::{Dictionary, DictionaryConfig};
use chandlery::rbm::likelihood::{Ais, AisConfig, AisRun};
use chandlery::rbm::{Rbm, RbmConfig, VisibleUnit};
use chandlery::sparse_autoencoder::sae::{Kind, Sae, SaeConfig};
use chandlery::{Encode, Model, Share};
use chandlery_ops::codes::SparseCodes;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::{Group, Philox};

/// Visible units, of which a row is no whole number of blocks of draws.
const VISIBLE: usize = 7;

#[test]
fn annealing_of_several_ranks_is_that_of_one() -> Result<()> {
    for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian] {
        let config = RbmConfig { visible, ..RbmConfig::new(VISIBLE, 5) };
        let weight = normal((5, VISIBLE), &CPU, Philox::new(1, 0))?;
        let bias = |n, stream| normal(n, &CPU, Philox::new(1, stream));
        let rbm = Rbm::from_tensors(config, weight, bias(5, 1)?, bias(VISIBLE, 2)?, None)?;
        let rows = uniform((6, VISIBLE), &CPU, Philox::new(1, 3))?.round()?;
        let run = |group: &Group| -> Result<[AisRun; 2]> {
            let settings = AisConfig { n_chains: 50, stages: AisConfig::stages(30), burn_in: 5 };
            let ais = Ais::new(&rbm, &Tensor::zeros(VISIBLE, candle::DType::F32, &CPU)?, settings)?;
            let ais = ais.in_group(group)?;
            let forward = ais.forward(Philox::new(2, 0), &mut |_, _| {})?;
            Ok([forward, ais.reverse(&rows, Philox::new(2, 1), &mut |_, _| {})?])
        };
        let alone = run(&Group::single())?;
        for world in 1..=4 {
            for made in each(world, run)? {
                for (a, b) in alone.iter().zip(made) {
                    let what = format!("{visible:?}, {world} ranks");
                    close(&what, a.log_z.value, b.log_z.value, 1e-12);
                    close(&what, a.log_z.upper, b.log_z.upper, 1e-12);
                    close(&what, a.effective_chains, b.effective_chains, 1e-9);
                    let states = [&a.states, &b.states].map(|t| t.flatten_all()?.to_vec1::<f64>());
                    let [a, b] = states;
                    a?.iter().zip(b?).for_each(|(a, b)| close(&what, *a, b, 1e-9));
                }
            }
        }
    }
    let rbm = Rbm::init(RbmConfig::new(4, 3), Philox::new(1, 0), &CPU)?;
    let said = each(3, |group| {
        let ais = Ais::new(&rbm, rbm.visible_bias(), AisConfig { n_chains: 8, ..AisConfig::default() })?;
        Ok(ais.in_group(group).map(drop).unwrap_err().to_string())
    })?;
    let first = said[0].lines().next().unwrap_or_default();
    assert_eq!(first, "Ais::in_group: n_chains must be at least 9 for 3 ranks, got 8");
    Ok(())
}

fn dense(codes: &SparseCodes) -> Result<Vec<Vec<f32>>> {
    codes.to_dense()?.to_vec2()
}

#[test]
fn codes_of_several_ranks_are_those_of_one_in_the_order_of_rows() -> Result<()> {
    let atoms = normal((12, VISIBLE), &CPU, Philox::new(1, 0))?;
    let dictionary = Dictionary::from_tensor(DictionaryConfig::new(12, VISIBLE, 3), atoms)?;
    // Codes of which each rank's are as wide as come.
    let latents = Sae::init(SaeConfig::new(VISIBLE, 20, Kind::Relu), Philox::new(1, 1), &CPU)?;
    for n in [1, 3, 4, 13, 22] {
        let rows = normal((n, VISIBLE), &CPU, Philox::new(2, n as u64))?;
        let pursued = dictionary.encode(&rows)?;
        for world in 1..=4 {
            let made = each(world, |group| {
                let share = Share::new(group, n);
                let own = share.own(&rows)?;
                assert_eq!(share.gathered(&own)?.to_vec2::<f32>()?, rows.to_vec2::<f32>()?);
                let codes = share.gathered_codes(&dictionary.encode(&own)?)?;
                assert_eq!(codes.count.to_vec1::<u32>()?, pursued.count.to_vec1::<u32>()?);
                Ok([dense(&codes)?, dense(&share.gathered_codes(&latents.encode(&own)?)?)?])
            })?;
            let alone = [dense(&pursued)?, dense(&latents.encode(&rows)?)?];
            for made in made {
                for (a, b) in alone.iter().flatten().flatten().zip(made.iter().flatten().flatten()) {
                    close(&format!("{n} rows, {world} ranks"), f64::from(*a), f64::from(*b), 1e-6);
                }
            }
        }
    }
    let refused = Share::new(&Group::single(), 3).gathered(&Tensor::zeros((2, 1), candle::DType::F32, &CPU)?);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.starts_with("Share: rank 0 must have 3 rows of 3, got shape [2, 1]"), "{refused}");
    Ok(())
}
