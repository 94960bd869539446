//! Every interleaving of what a pool shares.
