"""What a step pays for its verification rule: every rule timed on trees and logits made for the purpose, no model."""
