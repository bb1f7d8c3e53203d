//! What tests of several rooms share.

pub(crate) mod follower;
