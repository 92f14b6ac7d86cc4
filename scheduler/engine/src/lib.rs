//! The scheduler: claim, plan, wheel, route, dispatch, ingest and the duties that keep them true
