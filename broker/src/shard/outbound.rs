//! What waits to be sent on a connection.

use std::collections::VecDeque;

use tidegate_reactor::buffer::View;

/// What is queued for a send: small frames side by side in `frames`, large bodies as views between them.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    frames: Vec<u8>,
    pub(super) parts: VecDeque<Part>,
    bytes: usize,
    pub(super) sending: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Part {
    // So many further bytes of `frames`.
    Frames(usize),
    View(View),
}

/// A view that is so much smaller than the memory that it keeps alive is copied: that memory counts for the logs only as long as
/// they need it, and a client may leave the view unread for longer.
const PINNED_MAX: usize = 16;

impl Outbound {
    /// Returns the bytes that it has added.
    pub(super) fn put(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        let before = self.frames.len();
        encode(&mut self.frames);
        let added = self.frames.len() - before;
        self.bytes += added;
        match self.parts.back_mut() {
            Some(Part::Frames(bytes)) => *bytes += added,
            _ => self.parts.push_back(Part::Frames(added)),
        }
        added
    }

    /// Likewise.
    pub(super) fn put_view(&mut self, view: View) -> usize {
        if view.pinned() / PINNED_MAX > view.len() {
            return self.put(|out| out.extend_from_slice(&view));
        }
        self.bytes += view.len();
        let added = view.len();
        self.parts.push_back(Part::View(view));
        added
    }

    /// The first `views_max` parts. The small frames among them are copied into one buffer.
    pub(super) fn take(&mut self, views_max: usize) -> Vec<View> {
        let count = self.parts.len().min(views_max);
        let small: usize = self.parts.iter().take(count).map(|part| part.frames_bytes()).sum();
        let frames = (small > 0).then(|| View::copy_of(&self.frames[..small]));
        self.frames.drain(..small);
        let (mut at, mut bytes) = (0, 0);
        let views: Vec<View> = self
            .parts
            .drain(..count)
            .filter_map(|part| match part {
                Part::Frames(len) => {
                    at += len;
                    frames.as_ref().map(|frames| frames.slice(at - len..at))
                }
                Part::View(view) => Some(view),
            })
            .inspect(|view| bytes += view.len())
            .collect();
        self.bytes -= bytes;
        self.sending = Some(bytes);
        views
    }

    pub(super) fn queued(&self) -> usize {
        self.bytes + self.sending.unwrap_or(0)
    }
}

impl Part {
    fn frames_bytes(&self) -> usize {
        match self {
            Part::Frames(bytes) => *bytes,
            Part::View(_) => 0,
        }
    }
}
