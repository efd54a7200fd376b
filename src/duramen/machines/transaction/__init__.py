"""The transaction machine: transactional ids, their producers and transactions, behind `__transaction_state`."""
