//! A daemon that follows another one, which has ended in whatever way: clients go on with their queue pair numbers.
//!
//! Which block is leased with which token is told to the caller as [`Record`]s, who keeps them where the next daemon finds
//! them. That one leaves the blocks alone for as long as any other that was returned, except for the clients that know the
//! tokens. The blocks of clients that have ended in the meantime are reported as gone after [`CLAIM`].

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::Duration;

use verbs_core::host::bytes::LIST_MAX;
use verbs_core::host::message::{No, Token};
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Message};
use verbs_core::seed::Draws;
use verbs_core::time::Instant;

use super::{Daemon, span};
use crate::client::ClientId;

/// How long clients have to come back until their neighbours are told that they are gone. They try 20 times a second.
const CLAIM: Duration = Duration::from_secs(5);

/// Who has a block, for the next daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The block.
    pub block: Block,
    /// The token of its client; one that no client knows if it rests; `None` if it is free.
    pub token: Option<Token>,
}

/// Tokens of clients, and of blocks of the last daemon that no client has claimed.
#[derive(Debug)]
pub(super) struct Leases {
    draws: Draws,
    claims: BTreeMap<Block, Token>,
    /// When unclaimed blocks are given up; `None` when they have been.
    until: Option<Instant>,
    /// Clients of the last daemon have come back.
    any_claimed: bool,
    records: VecDeque<Record>,
}

impl Leases {
    pub(super) fn new(draws: Draws) -> Self {
        Self {
            draws,
            claims: BTreeMap::new(),
            until: None,
            any_claimed: false,
            records: VecDeque::new(),
        }
    }

    /// A token that nobody knows.
    pub(super) fn token(&mut self) -> Token {
        let halves = [self.draws.draw(), self.draws.draw()].map(u64::to_ne_bytes);
        std::array::from_fn(|n| halves[n / 8][n % 8])
    }

    pub(super) fn claims_until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the owner of a block may come back to claim it.
    pub(super) fn is_awaited(&self, block: Block) -> bool {
        self.until.is_some() && self.claims.contains_key(&block)
    }

    /// Whether clients may have connections of which this daemon does not know.
    pub(super) fn has_unknown(&self) -> bool {
        self.any_claimed || self.until.is_some()
    }

    pub(super) fn leased(&mut self, block: Block, token: Token) {
        let token = Some(token);
        self.records.push_back(Record { block, token });
    }

    /// It rests, here and in the next daemon.
    pub(super) fn returned(&mut self, block: Block) {
        let token = self.token();
        self.leased(block, token);
    }
}

impl Daemon {
    /// What the records of the last daemon say. Called at the start.
    pub fn restore(&mut self, now: Instant, records: impl IntoIterator<Item = Record>) {
        for Record { block, token } in records {
            if let Some(token) = token.filter(|_| block != Block::DAEMON) {
                self.blocks.rest(block, span(now));
                self.leases.claims.insert(block, token);
            }
        }
        self.leases.until = (!self.leases.claims.is_empty()).then_some(now + CLAIM);
    }

    /// Something that the next daemon has to know, in order.
    pub fn poll_record(&mut self) -> Option<Record> {
        self.leases.records.pop_front()
    }

    /// A block for a client.
    pub(super) fn lease_block(&mut self, now: Instant, client: ClientId) -> Option<Block> {
        for block in self.blocks.rested(span(now)) {
            self.leases.claims.remove(&block);
            let token = None;
            self.leases.records.push_back(Record { block, token });
        }
        let block = self.blocks.lease(client)?;
        let token = self.clients.get(&client)?.token;
        self.leases.leased(block, token);
        Some(block)
    }

    /// A client of the last daemon wants to go on with its blocks: with all of them, or it is refused.
    pub(super) fn claim(
        &mut self,
        now: Instant,
        client: ClientId,
        token: Token,
        blocks: &[u16],
    ) -> Result<Block, No> {
        let max = Quota::Blocks.max() as usize;
        let blocks: Option<Vec<_>> = blocks.iter().map(|&block| Block::new(block)).collect();
        let blocks = blocks
            .filter(|blocks| blocks.len() <= max)
            .ok_or(No::Claim)?;
        let first = *blocks.first().ok_or(No::Claim)?;
        let is_its = |block: &Block| self.leases.claims.get(block) == Some(&token);
        if !blocks.iter().all(is_its) {
            return Err(No::Claim);
        }
        let mut claimed = Vec::new();
        for &block in &blocks {
            if self.blocks.claim(client, block) {
                claimed.push(block);
            }
        }
        if claimed.len() < blocks.len() {
            // It has named a block twice.
            for block in claimed {
                self.blocks.give_back(client, block, span(now));
            }
            return Err(No::Claim);
        }
        for block in &blocks {
            self.leases.claims.remove(block);
        }
        self.leases.any_claimed = true;
        if self.leases.claims.is_empty() {
            self.leases.until = None;
        }
        Ok(first)
    }

    /// Clients of the last daemon that have not come back have ended.
    pub(super) fn give_up_claims(&mut self, now: Instant) {
        if self.leases.until.is_none_or(|until| until > now) {
            return;
        }
        self.leases.until = None;
        let gone: Vec<_> = self
            .leases
            .claims
            .keys()
            .copied()
            .map(Block::number)
            .collect();
        for gone in gone.chunks(LIST_MAX) {
            self.tell_all(&Message::Gone(gone.to_vec()));
        }
    }
}
