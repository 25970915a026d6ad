//! Ranks that share the maps of a convolution reach what one rank reaches, up to the order of sums.
use super::CPU;
use super::rbm::{
    Case, cases, checkpoints_go_on, config, every_number_learns_alike, layers_are_alike, refused,
};
use candle::Result;
use chandlery::conv_rbm::ConvGrid;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::rbm::{RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::{Philox, Trainer};
use chandlery_ops::Group;

/// Maps of 4 x 4 places, which divide by fours into 3 and 2, 2, 2 and 1, or 2 and three times 1.
fn filters(pool: usize) -> Result<RbmConfig> {
    RbmConfig::convolution(ConvGrid { pool, ..ConvGrid::of_image([6, 6, 3], 3, 20) })
}

fn of_filters() -> Result<Vec<Case>> {
    let mut all = cases(filters(1)?);
    all.extend(cases(filters(2)?));
    // Hidden units of a convolution are 0 or 1.
    all.retain(|case| case.0 != "rectified");
    let drawn = RbmTrainConfig { binarize: true, persistent: true, k: 2, ..config() };
    all.push(("pooled chains of drawn rows", filters(2)?, drawn));
    Ok(all)
}

#[test]
fn every_number_of_ranks_learns_filters_as_one_does() -> Result<()> {
    every_number_learns_alike(&of_filters()?)
}

#[test]
fn a_checkpoint_of_filters_is_that_of_all_ranks() -> Result<()> {
    checkpoints_go_on(&of_filters()?)
}

#[test]
fn a_network_of_convolutions_is_trained_layer_by_layer() -> Result<()> {
    let lowest = filters(2)?;
    let above = RbmConfig::convolution(lowest.hidden_conv_grid(2, 12).unwrap())?;
    let dense = RbmConfig::new(above.n_hidden, 12);
    let config = DbnConfig { layers: vec![lowest, above, dense], ..DbnConfig::new(&[1, 1]) };
    let network = Dbn::init(config, Philox::new(7, 0), &CPU)?;
    [2, 3].into_iter().try_for_each(|world| layers_are_alike(&network, world))
}

#[test]
fn what_ranks_cannot_share_of_filters_is_refused() -> Result<()> {
    let odd = RbmConfig::convolution(ConvGrid::of_image([6, 6, 1], 3, 6))?;
    let said = "RbmTrainer: filters must be a multiple of 4, and 4 for each of 2 ranks, got 6";
    assert_eq!(refused(odd, config())?, said);
    // Patches above a convolution would need some lines of its maps.
    let lowest = filters(1)?;
    let above = RbmConfig::patches(lowest.hidden_grid(2, 1).unwrap(), 4)?;
    let config = DbnConfig { layers: vec![lowest, above], ..DbnConfig::new(&[1, 1]) };
    let network = Dbn::init(config, Philox::new(7, 0), &CPU)?;
    let [below, above] = network.layers() else { panic!("two layers") };
    for said in Group::on_threads(Group::threads(2), |group| {
        let preparation = &network.config().preparation;
        let training = super::rbm::config();
        let below = std::slice::from_ref(below);
        let trainer = RbmTrainer::above(below, above, preparation, training, Philox::new(7, 1)).unwrap();
        trainer.in_group(group).err().unwrap().to_string()
    }) {
        assert!(said.contains("the layers below must have patches whose units are its grid"), "{said}");
    }
    Ok(())
}
